"""Does control train faster, or better? The same network, trained for different lengths."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pidformer.control import PIDGains
from pidformer.models.gains import as_gains
from pidformer.report.metrics import Metric
from pidformer.report.panels import Panel
from pidformer.report.table_view import NONE
from study.comparisons import Compared, compare_all
from study.image_metrics import classification_metrics
from study.pictures import Point, points_panel
from study.records import Study, Variant, training_length
from study.section import Section
from study.tables import bold, table

_METRICS = ("Clean", "PGD")
_WORDS = (
    "Rows that differ in the length of their training alone (epochs, and the warmup that goes with "
    "them), each against the softmax row of the same length, on all images so that lengths can be "
    "compared (post hoc where rows are registered on a half). Where several rows have one length, "
    "the pictures show the one with the most seeds. Intervals of one seed are for other images "
    "alone, narrower than they would be for other seeds; such points are hollow."
)
_CAPTION = (
    "Accuracy minus that of softmax, in points with 95 % intervals, over the length of training: "
    "the same network, all images, every length against its own softmax."
)
_HOLLOW = " Hollow points have one seed: their intervals are for other images alone."


class _Row(NamedTuple):
    """A variant, and its differences to softmax by metric."""

    variant: Variant
    compared: Mapping[str, Compared]

    @property
    def epochs(self) -> int:
        return training_length(self.variant.runs[0])[0]


def length_section(study: Study) -> list[Section]:
    """Differences to softmax, and accuracy itself, over epochs; nothing where there is one length.

    A picture has one row per length; a point of accuracy is the mean over its seeds.
    """
    series = _series([study])
    if not any(not own[0].variant.is_plain for own in series):
        return []
    rows = []
    for row in (row for own in series for row in own if not row.variant.is_plain):
        cells = [row.compared.get(title) for title in _METRICS]
        seeds = ", ".join(map(str, row.variant.seeds))
        texts = [bold(one) if one is not None else NONE for one in cells]
        rows.append([row.variant.name, str(row.epochs), seeds, *texts])
    heads = ["", "epochs", "seeds", *(f"{title} minus softmax" for title in _METRICS)]
    panels = []
    series = [_drawn(own) for own in series]
    for metric in _asked(study):
        panels += [_accuracy(series, metric), _differences(series, metric.title)]
    body = [_WORDS, table(heads, rows)]
    return [Section(title="Length of training", body=body, panels=panels)]


def length_figure(studies: Sequence[Study]) -> tuple[list[Panel], str]:
    """Differences over epochs of the controllers that were trained for the longest, from all
    studies, and what the figure shows; nothing where there is one length."""
    kept = [study.reported for study in studies if study.task == "classification"]
    series = [_drawn(own) for own in _series(kept)]
    longest = max((own[-1].epochs for own in series), default=0)
    controlled = [own for own in series if own[-1].epochs == longest]
    controlled = [own for own in controlled if not own[0].variant.is_plain]
    if not controlled:
        return [], ""
    panels = [_differences(controlled, title, _gains)[0] for title in _METRICS]
    drawn = (row for own in controlled for row in own)
    is_hollow = any(one.found.seeds < 2 for row in drawn for one in row.compared.values())
    return panels, _CAPTION + _HOLLOW * is_hollow


def _gains(own: Sequence[_Row]) -> str:
    """ "PID 0.4, 0.1, 0.05, beta 0.5", or the name of what has no gains of that form."""
    given = own[-1].variant.runs[0].recipe["model"].get("gains")
    if not isinstance(given, str):
        return _name(own)
    gains = as_gains(given)
    if gains == PIDGains.paper("deit"):
        return "the paper's PID"
    acting = ", ".join(f"{value:g}" for value in (gains.p, gains.i, gains.d) if value)
    return f"{gains.kind} {acting}" + ("" if gains.beta == 1 else f", beta {gains.beta:g}")


def _asked(study: Study) -> list[Metric]:
    metrics = {m.title: m for m in classification_metrics(study.runs, None)}
    return [metrics[title] for title in _METRICS if title in metrics]


def _series(studies: Sequence[Study]) -> list[list[_Row]]:
    """Rows that differ in length alone, by length; softmax first."""
    lines: dict[str, list[_Row]] = {}
    for study in studies:
        compared = compare_all(study, _asked(study))
        length = {variant.name: training_length(variant.runs[0]) for variant in study.variants}
        compared = [one for one in compared if length[one.variant] == length[one.twin]]
        for variant in study.variants:
            own = {one.metric.title: one for one in compared if one.variant == variant.name}
            lines.setdefault(_kind(variant), []).append(_Row(variant, own))
    series = [sorted(own, key=lambda row: row.epochs) for own in lines.values()]
    return [own for own in series if len({row.epochs for row in own}) > 1]


def _kind(variant: Variant) -> str:
    """What rows that differ in length alone have in common."""
    recipe = variant.runs[0].recipe
    schedule = recipe.get("schedule", {})
    shared = {key: recipe.get(key) for key in ("model", "data", "optim")}
    shared["schedule"] = {k: v for k, v in schedule.items() if "epochs" not in k and k != "steps"}
    return json.dumps(shared, sort_keys=True, default=str)


def _drawn(own: Sequence[_Row]) -> list[_Row]:
    """One row for each length: that with the most seeds."""
    best: dict[int, _Row] = {}
    for row in own:
        known = best.setdefault(row.epochs, row)
        if len(row.variant.seeds) > len(known.variant.seeds):
            best[row.epochs] = row
    return list(best.values())


def _name(own: Sequence[_Row]) -> str:
    """The shortest: what their names have in common, if one of them is called that."""
    return min((row.variant.name for row in own), key=lambda name: (len(name), name))


def _accuracy(series: Sequence[Sequence[_Row]], metric: Metric) -> tuple[Panel, str]:
    lines = {}
    for own in series:
        means = [(row.epochs, metric.mean(row.variant)) for row in own]
        lines[_name(own)] = [Point(x, found.mean) for x, found in means if found is not None]
    plain = [own[0].variant.is_plain for own in series]
    panel = points_panel(lines, metric.title, "epochs", "per cent", is_plain=plain, is_log=True)
    return panel, f"{metric.title} over epochs"


def _differences(
    series: Sequence[Sequence[_Row]],
    title: str,
    label: Callable[[Sequence[_Row]], str] = _name,
) -> tuple[Panel, str]:
    lines = {}
    for own in (own for own in series if not own[0].variant.is_plain):
        known = [(row.epochs, row.compared[title].found) for row in own if title in row.compared]
        lines[label(own)] = [
            Point(x, found.mean, found.low, found.high, found.seeds == 1) for x, found in known
        ]
    plain = [False] * len(lines)
    words = f"{title} minus softmax"
    panel = points_panel(lines, words, "epochs", "points", is_plain=plain, is_log=True)
    return panel, f"{words}, over epochs with 95 % intervals"
