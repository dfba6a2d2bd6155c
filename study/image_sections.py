"""What the first tables leave out: Top-5, corruptions by type, budgets of attacks, layers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from pidformer.report.collect import PublishedRun
from pidformer.report.figures import mean_points
from pidformer.report.metrics import Metric
from pidformer.report.panels import Panel
from pidformer.report.table1 import TITLES
from pidformer.report.table_view import NONE
from pidformer.results import Record
from pidformer.robustness.threat import as_budget
from study.comparisons import Compared, compare_all, mean_text
from study.image_metrics import (
    classification_metrics,
    corruption_metrics,
    top5_metrics,
)
from study.pictures import Point, lines_panel, points_panel
from study.records import Study, Variant
from study.section import Section, metrics_section
from study.tables import accuracy_tables, table

_TOP5 = (
    "How often the true class is among the five likeliest, in per cent (Top-1 is in the tables "
    "above). Records keep it as one number per run, so it is over all images (post hoc where rows "
    "are registered on a half), and the differences have intervals over seeds alone."
)
_TABLE1 = (
    "The paper's Table 1 with our rows: accuracy in per cent, Top-1 / Top-5, mean over seeds. "
    "**Bold**: resolved from softmax, better or worse. Clean and the threats of the pixel domain "
    "first, then the paper's normalised domain with its budgets; rows on a sample say so."
)
_TYPES = (
    "Accuracy under each type of corruption, the mean over its severities, in per cent; over all "
    "images (post hoc where rows are registered on a half). Records keep one number per type, so "
    "intervals are over seeds alone, narrower than for new images too."
)
_CURVES = (
    "Top-1 accuracy over the budget of an attack, in per cent; 0 is the clean set. Records keep "
    "one number per budget, so intervals are over seeds alone."
)
_LAYERS = (
    "Mean cosine between the tokens of an image after each layer (the paper's Figure 2; 1: all "
    "alike), and where records have it their effective rank; means over seeds and images."
)


def image_metrics(study: Study) -> dict[str, Metric]:
    """All that is measured of a classifier, on all images, by title."""
    top1 = classification_metrics(study.runs, None)
    others = [*corruption_metrics(study.runs), *curve_metrics(study)]
    top5 = {f"Top-5, {metric.title}": metric for metric in top5_metrics(study.runs)}
    return {metric.title: metric for metric in (*top1, *others)} | top5


def top5_section(study: Study) -> list[Section]:
    """Means and differences of all variants; nothing where no record has it."""
    metrics = top5_metrics(study.runs)
    if not metrics:
        return []
    body = [_TOP5, *accuracy_tables(study, metrics, compare_all(study, metrics))]
    return [Section(title="Top-5", body=body)]


def table1_section(study: Study) -> list[Section]:
    """Top-1 and Top-5 of a few variants side by side; nothing where no record has Top-5."""
    top5 = {metric.title: metric for metric in top5_metrics(study.runs)}
    if not top5:
        return []
    judged = [m for m in classification_metrics(study.runs, None) if m.better]
    top1 = [m for m in judged if not m.title.startswith("Clean, ")]
    compared = compare_all(study, [*top1, *top5.values()])
    resolved = {(one.variant, id(one.metric)) for one in compared if one.is_resolved}

    def number(variant: Variant, metric: Metric) -> str:
        text = mean_text(metric.mean(variant)).partition(" [")[0]
        return f"**{text}**" if (variant.name, id(metric)) in resolved else text

    rows = []
    for metric in top1:
        pair = [one for one in (metric, top5.get(metric.title)) if one is not None]
        cells = [
            " / ".join(number(v, m) for m in pair if m.mean(v) is not None) or NONE
            for v in study.variants
        ]
        rows.append([metric.title, *cells])
    heads = ["", *(variant.name for variant in study.variants)]
    return [Section(title="Table 1", body=[_TABLE1, table(heads, rows)], front=2)]


def corruptions_section(study: Study) -> list[Section]:
    """Softmax and the differences to it, a line for each type."""
    metrics = corruption_metrics(study.runs)
    found = metrics_section(study, "Corruptions by type", _TYPES, metrics, only_plain=True)
    return [replace(found, compared=[])] if found.compared else []


class _At(NamedTuple):
    """A point of a curve: which record of a run."""

    attack: str
    budget: str
    limit: int | None
    domain: str | None

    @property
    def title(self) -> str:
        words = [f"{TITLES.get(self.attack, self.attack)} {self.budget}"]
        words += [self.domain] if self.domain not in (None, "pixel") else []
        words += [f"{self.limit} images"] if self.limit is not None else []
        return ", ".join(words)


def curves_section(study: Study) -> list[Section]:
    """A table and a panel for each attack that was measured at several budgets, if any was."""
    points = _points(study)
    if not points:
        return []
    kinds = dict.fromkeys((at.attack, at.limit, at.domain) for at in points)
    found = metrics_section(study, "Over the budget", _CURVES, curve_metrics(study))
    panels, ahead = [], []
    for kind in kinds:
        own = [at for at in points if (at.attack, at.limit, at.domain) == kind]
        title = TITLES.get(kind[0], kind[0])
        lines = {variant.name: _curve(variant, own) for variant in study.variants}
        plain = [variant.is_plain for variant in study.variants]
        panel = lines_panel(lines, title, "budget, in 1/255", "top-1, per cent", plain)
        panels.append((panel, f"Accuracy by budget under {title}"))
        if gained := _differences(found.compared, own):
            title += " minus softmax"
            panel = points_panel(
                gained, title, "budget, in 1/255", "points", is_plain=[False] * len(gained),
                is_line=True,
            )  # fmt: skip
            ahead.append((panel, title))
    return [replace(found, panels=panels + ahead, front=1)]


def _differences(compared: Sequence[Compared], points: Sequence[_At]) -> dict[str, list[Point]]:
    """Over the budget, by variant, with intervals."""
    budgets = {at.title: 255 * as_budget(at.budget) for at in points}
    lines: dict[str, list[Point]] = {}
    for one in (one for one in compared if one.metric.title in budgets):
        c = one.found
        point = Point(budgets[one.metric.title], c.mean, c.low, c.high, c.seeds < 2)
        lines.setdefault(one.variant, []).append(point)
    return lines


def _points(study: Study) -> list[_At]:
    return sorted(
        {_at(r) for run in study.runs for r in run.of("robustness") if "@" in r.settings["row"]},
        key=lambda at: (str(at.domain), at.limit or 0, at.attack, as_budget(at.budget)),
    )


def curve_metrics(study: Study) -> list[Metric]:
    """Accuracy at each budget: over seeds alone."""
    return [
        Metric(title=at.title, find=partial(_find, at=at), read=lambda r: r.metrics["top1"])
        for at in _points(study)
    ]


def _at(record: Record) -> _At:
    attack, _, budget = str(record.settings["row"]).partition("@")
    return _At(attack, budget, record.settings.get("limit"), record.settings.get("domain"))


def _find(run: PublishedRun, at: _At) -> Record | None:
    row = f"{at.attack}@{at.budget}"
    return run.one("robustness", row=row, limit=at.limit, domain=at.domain)


def _curve(variant: Variant, points: Sequence[_At]) -> list[tuple[float, float]]:
    """Over the runs that were measured at all of the points, from the clean set on."""
    budgets = [0.0, *(255 * as_budget(at.budget) for at in points)]
    found = []
    for run in variant.runs:
        clean = run.one("robustness", row="clean", limit=points[0].limit, domain=points[0].domain)
        records = [clean, *(_find(run, at) for at in points)]
        known = [record.metrics["top1"] for record in records if record is not None]
        if len(known) == len(records):
            found.append([*zip(budgets, known, strict=True)])
    return mean_points(found)


def similarity_section(study: Study, groups: Mapping[str | None, Sequence[str]]) -> list[Section]:
    """Panels for each group of variants: cosine, and effective rank where records have it."""
    panels: list[tuple[Panel, str]] = []
    for group, names in groups.items():
        variants = [variant for variant in study.variants if variant.name in names]
        for what, name in (("similarity", "mean cosine"), ("effective_rank", "effective rank")):
            lines = {v.name: _by_layer(v, what) for v in variants}
            known = {label: line for label, line in lines.items() if line}
            if known:
                plain = [v.is_plain for v in variants if v.name in known]
                where = f"{name}, {group}" if len(groups) > 1 and group else name
                panel = lines_panel(known, where, "layer", name, plain)
                begin = "" if panels else "By layer: "
                panels.append((panel, f"{begin}{name} ({', '.join(known)})"))
    if not panels:
        return []
    shown = 1 if len(groups) == 1 else 0
    return [Section(title="Tokens by layer", body=[_LAYERS], panels=panels, front=shown)]


def _by_layer(variant: Variant, what: str) -> list[tuple[float, float]]:
    """The mean over the runs that have it, layer by layer."""
    looks = [run.one("analysis", what="token_similarity") for run in variant.runs]
    found = [record.details[what] for record in looks if record and what in record.details]
    lines = [own["blocks"] if isinstance(own, Mapping) else own for own in found]
    return mean_points([[(float(x), y) for x, y in enumerate(line, 1)] for line in lines])
