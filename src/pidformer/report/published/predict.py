"""What predicts the difference to softmax: the stability margin, or the size of the control?

Rows are set side by side only where they have the same softmax twin: the same training, depth and
residual, and different control.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import scipy
import torch

from pidformer.control import PIDGains, spectral_radius
from pidformer.models.gains import as_gains
from pidformer.report.panels import Panel
from pidformer.report.published.draw import Point, points_panel
from pidformer.report.published.images import classification_metrics
from pidformer.report.published.numbers import NONE, Compared
from pidformer.report.published.section import Section
from pidformer.report.published.studies import Study, Variant
from pidformer.report.published.tables import table

FEWEST = 4
"""Rows of one twin below which a correlation says nothing."""
RADIUS, FIRST, TRAINED = "largest radius", "control's size at first", "control's size, trained"
_WORDS = (
    "The difference in Clean beside what might predict it: the largest radius of the idealised "
    "recursion over eigenvalues of attention in [0, 1] (above 1 some mode grows; rows with one set "
    "of gains), and the size of the control over that of the attention's output, before and after "
    "training. Rank correlations are among rows of one softmax twin, four or more; such rows share "
    "its runs, so take them as a description."
)


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """A row: what is known of its control, and what it gave."""

    clean: Compared
    known: dict[str, float]


def prediction_section(study: Study, compared: Sequence[Compared]) -> list[Section]:
    """A table of all rows, a picture for each predictor; nothing while rows are few."""
    found = _rows(study, compared)
    by_twin: dict[str, list[Predicted]] = {}
    for row in found:
        by_twin.setdefault(row.clean.twin, []).append(row)
    if not any(len(rows) >= FEWEST for rows in by_twin.values()):
        return []
    heads = ["", "twin", RADIUS, FIRST, TRAINED, "Clean, less its twin"]
    lines = [
        [row.clean.variant, row.clean.twin, *map(row_text, _numbers(row)), row.clean.text]
        for rows in by_twin.values()
        for row in rows
    ]
    said, panels = [], []
    for what in (RADIUS, FIRST, TRAINED):
        points = {
            twin: [row for row in rows if what in row.known] for twin, rows in by_twin.items()
        }
        points = {twin: rows for twin, rows in points.items() if len(rows) >= FEWEST}
        said += [_correlation(what, twin, rows) for twin, rows in points.items()]
        if points:
            panels.append((_panel(what, points), f"difference in Clean over {what}"))
    return [
        Section(
            title="What predicts the difference",
            body=[_WORDS, table(heads, lines)],
            findings=said,
            panels=panels,
        )
    ]


def _rows(study: Study, compared: Sequence[Compared]) -> list[Predicted]:
    clean = {one.variant: one for one in compared if one.metric.title == "Clean"}
    metrics = {m.title: m for m in classification_metrics(study.runs, 1)}
    found = []
    for variant in (v for v in study.variants if v.name in clean):
        known: dict[str, float] = {}
        gains = _gains(variant)
        if gains is not None:
            known[RADIUS] = worst_radius(gains)
        for what, title in ((FIRST, "at first"), (TRAINED, "control's size")):
            mean = metrics[title].mean(variant) if title in metrics else None
            if mean is not None:
                known[what] = mean.mean
        if known:
            found.append(Predicted(clean=clean[variant.name], known=known))
    return found


def _numbers(row: Predicted) -> list[float | None]:
    return [row.known.get(what) for what in (RADIUS, FIRST, TRAINED)]


def row_text(number: float | None) -> str:
    return NONE if number is None else f"{number:.3f}"


def _correlation(what: str, twin: str, rows: Sequence[Predicted]) -> str:
    rank = scipy.stats.spearmanr([r.known[what] for r in rows], [r.clean.found.mean for r in rows])
    begin = f"{what} and the difference in Clean, {len(rows)} rows with {twin}: "
    if math.isnan(rank.statistic):
        return begin + "no rank correlation, the rows are level."
    return begin + f"rank correlation {rank.statistic:+.2f} (p {rank.pvalue:.2g})."


def _panel(what: str, points: dict[str, list[Predicted]]) -> Panel:
    series = {
        f"with {twin}": [
            Point(r.known[what], r.clean.found.mean, r.clean.found.low, r.clean.found.high)
            for r in rows
        ]
        for twin, rows in points.items()
    }
    return points_panel(
        series, f"Clean over {what}", what, "points", is_plain=[False] * len(series)
    )


def worst_radius(gains: PIDGains) -> float:
    """Largest |pole| over eigenvalues of attention from 0 to 1; below 1 every mode decays."""
    kappas = torch.linspace(0, 1, 201, dtype=torch.float64)
    return float(spectral_radius(kappas, gains).max())


def _gains(variant: Variant) -> PIDGains | None:
    """The gains of a variant that has the same in every layer, fixed, and nothing else."""
    model = variant.header.settings["recipe"].get("model", {})
    options = model.get("options", {})
    is_other = any(options.get(name) for name in ("integral_leak", "integral_limit"))
    given = model.get("gains")
    if given is None or isinstance(given, list) or model.get("learn_gains") or is_other:
        return None
    return as_gains(given)
