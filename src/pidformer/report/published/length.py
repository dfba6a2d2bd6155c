"""Does control train faster, or better? The same network, trained for different lengths."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pidformer.report.panels import Panel
from pidformer.report.published.draw import Point, points_panel
from pidformer.report.published.images import classification_metrics
from pidformer.report.published.numbers import NONE, Compared, Metric, compare_all
from pidformer.report.published.section import Section
from pidformer.report.published.studies import Study, Variant
from pidformer.report.published.tables import bold, table

_METRICS = ("Clean", "PGD")
_WORDS = (
    "Rows that differ in the length of their training alone (epochs, and the warmup that goes with "
    "them), each against the softmax row of the same length, on all images so that lengths can be "
    "compared (post hoc where rows are registered on a half). Where several rows have one length, "
    "the pictures show the one with the most seeds. Intervals of one seed are for other images "
    "alone, narrower than they would be for other seeds."
)


def length_section(study: Study) -> list[Section]:
    """Differences to softmax, and accuracy itself, over epochs; nothing where there is one length.

    A picture has one row per length; a point of accuracy is the mean over its seeds.
    """
    lines: dict[str, list[Variant]] = {}
    for variant in study.variants:
        lines.setdefault(_kind(variant), []).append(variant)
    series = [sorted(own, key=_epochs) for own in lines.values()]
    series = [own for own in series if len({_epochs(v) for v in own}) > 1]
    if not any(not own[0].is_plain for own in series):
        return []
    metrics = {m.title: m for m in classification_metrics(study.runs, None)}
    asked = [metrics[title] for title in _METRICS if title in metrics]
    by_name = {(one.variant, one.metric.title): one for one in compare_all(study, asked)}
    rows = []
    for variant in (v for own in series for v in own if not v.is_plain):
        cells = [by_name.get((variant.name, title)) for title in _METRICS]
        seeds = ", ".join(map(str, variant.seeds))
        texts = [bold(one) if one is not None else NONE for one in cells]
        rows.append([variant.name, str(_epochs(variant)), seeds, *texts])
    heads = ["", "epochs", "seeds", *(f"{title} minus softmax" for title in _METRICS)]
    panels = []
    series = [_drawn(own) for own in series]
    for metric in asked:
        panels += [_accuracy(series, metric), _differences(series, by_name, metric.title)]
    body = [_WORDS, table(heads, rows)]
    return [Section(title="Length of training", body=body, panels=panels)]


def _kind(variant: Variant) -> str:
    """What rows that differ in length alone have in common."""
    recipe = variant.runs[0].recipe
    schedule = recipe.get("schedule", {})
    shared = {key: recipe.get(key) for key in ("model", "data", "optim")}
    shared["schedule"] = {k: v for k, v in schedule.items() if "epochs" not in k and k != "steps"}
    return json.dumps(shared, sort_keys=True, default=str)


def _epochs(variant: Variant) -> int:
    return int(variant.runs[0].recipe.get("schedule", {}).get("epochs") or 0)


def _drawn(own: Sequence[Variant]) -> list[Variant]:
    """One row for each length: that with the most seeds."""
    best: dict[int, Variant] = {}
    for variant in own:
        known = best.setdefault(_epochs(variant), variant)
        if len(variant.seeds) > len(known.seeds):
            best[_epochs(variant)] = variant
    return list(best.values())


def _name(own: Sequence[Variant]) -> str:
    """The shortest: what their names have in common, if one of them is called that."""
    return min((variant.name for variant in own), key=lambda name: (len(name), name))


def _accuracy(series: Sequence[Sequence[Variant]], metric: Metric) -> tuple[Panel, str]:
    lines = {}
    for own in series:
        points = []
        for variant in own:
            records = [r for run in variant.runs if (r := metric.find(run)) is not None]
            values = [metric.read(record) for record in records]
            if values:
                points.append(Point(_epochs(variant), sum(values) / len(values)))
        lines[_name(own)] = points
    plain = [own[0].is_plain for own in series]
    panel = points_panel(lines, metric.title, "epochs", "per cent", is_plain=plain, is_line=True)
    return panel, f"{metric.title} over epochs"


def _differences(
    series: Sequence[Sequence[Variant]], by_name: dict[tuple[str, str], Compared], title: str
) -> tuple[Panel, str]:
    lines = {}
    for own in (own for own in series if not own[0].is_plain):
        known = [(v, one) for v in own if (one := by_name.get((v.name, title))) is not None]
        lines[_name(own)] = [
            Point(_epochs(v), one.found.mean, one.found.low, one.found.high) for v, one in known
        ]
    plain = [False] * len(lines)
    words = f"{title} minus softmax"
    panel = points_panel(lines, words, "epochs", "points", is_plain=plain, is_line=True)
    return panel, f"{words}, over epochs with 95 % intervals"
