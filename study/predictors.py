"""What predicts the difference to softmax: the stability margin, or the size of the control?

Rows are set side by side only where they have the same softmax twin: the same training, depth and
residual, and different control.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import scipy

from pidformer.control import PIDGains, worst_radius
from pidformer.control.feedback import Feedback, as_feedback
from pidformer.report.panels import Panel
from pidformer.report.table_view import NONE, minus
from pidformer.reproduce.study import CORRELATES
from study.comparisons import Compared
from study.network_metrics import SPECTRA, TOKENS, inside_metrics
from study.pictures import Point, points_panel
from study.records import Study, Variant
from study.section import Section
from study.tables import bold, table

FEWEST = 4
"""Rows of one twin below which a correlation says nothing."""
RADIUS, MEASURED, FIRST, TRAINED = CORRELATES
_HEIGHT = 2.9
_DIGITS = 6
_WORDS = (
    "The difference in Clean beside what might predict it: the largest radius of the idealised "
    "recursion over eigenvalues of attention in [0, 1] (above 1 some mode grows; rows with one set "
    "of gains), the same over those measured in the trained networks (all rows that have a "
    "certificate), and the size of the control "
    "over that of the attention's output, before and after training. Rank correlations are among "
    "rows of one softmax twin, four or more; such rows share its runs, so take them as a "
    "description."
)


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """A row: what is known of its control, and what it gave."""

    clean: Compared
    known: dict[str, float]

    @property
    def cells(self) -> list[str]:
        return [f"{self.known[w]:.3f}" if w in self.known else NONE for w in CORRELATES]


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Of a predictor and the difference in Clean, among rows of one twin."""

    what: str
    twin: str
    rows: Sequence[Predicted]

    @cached_property
    def rank(self) -> tuple[float, float]:
        """Spearman's, and its p-value; NaN where rows are level.

        Numbers that agree to `_DIGITS` decimals are ties: beyond, roots and means are noise.
        """
        known = [round(row.known[self.what], _DIGITS) for row in self.rows]
        gains = [round(row.clean.found.mean, _DIGITS) for row in self.rows]
        if len({*known}) == 1 or len({*gains}) == 1:
            return math.nan, math.nan
        found = scipy.stats.spearmanr(known, gains)
        return float(found.statistic), float(found.pvalue)

    @property
    def text(self) -> str:
        begin = f"{self.what} and the difference in Clean, {len(self.rows)} rows with {self.twin}: "
        rank, p = self.rank
        if math.isnan(rank):
            return begin + "no rank correlation, the rows are level"
        return begin + minus(f"rank correlation {rank:+.2f}") + f" (p {p:.2g})"


def prediction_section(study: Study, compared: Sequence[Compared]) -> list[Section]:
    """A table of all rows, a picture for each twin and predictor; nothing while rows are few."""
    by_twin = _by_twin(study, compared)
    found = correlations(study, compared)
    if not found:
        return []
    heads = ["", "twin", *CORRELATES, "Clean minus its twin"]
    lines = [
        [row.clean.variant, row.clean.twin, *row.cells, bold(row.clean)]
        for rows in by_twin.values()
        for row in rows
    ]
    words = "The difference in Clean over what might predict it, pictures for each twin: "
    return [
        Section(
            title="What predicts the difference",
            body=[_WORDS, table(heads, lines, left=2)],
            findings=[f"{one.text}." for one in found],
            panels=[
                (_panel(one), f"{'' if place else words}{one.what} ({one.twin})")
                for place, one in enumerate(found)
            ],
        )
    ]


def correlations(study: Study, compared: Sequence[Compared]) -> list[Correlation]:
    """Twin by twin, of each predictor that enough of its rows have."""
    found = []
    for twin, rows in _by_twin(study, compared).items():
        for what in CORRELATES:
            own = [row for row in rows if what in row.known]
            if len(own) >= FEWEST:
                found.append(Correlation(what=what, twin=twin, rows=own))
    return found


def _by_twin(study: Study, compared: Sequence[Compared]) -> dict[str, list[Predicted]]:
    found: dict[str, list[Predicted]] = {}
    for row in _rows(study, compared):
        found.setdefault(row.clean.twin, []).append(row)
    return found


def _rows(study: Study, compared: Sequence[Compared]) -> list[Predicted]:
    clean = {one.variant: one for one in compared if one.metric.title == "Clean"}
    inside = inside_metrics(study.runs, (*TOKENS, *SPECTRA))
    metrics = {metric.title: metric for metric in inside}
    found = []
    for variant in (v for v in study.variants if v.name in clean):
        known: dict[str, float] = {}
        gains = _gains(variant)
        if gains is not None:
            known[RADIUS] = worst_radius(gains)
        for what, title in (
            (MEASURED, "largest radius"),
            (FIRST, "at first"),
            (TRAINED, "control's size"),
        ):
            mean = metrics[title].mean(variant) if title in metrics else None
            if mean is not None:
                known[what] = mean.mean
        if known:
            found.append(Predicted(clean=clean[variant.name], known=known))
    return found


def _panel(one: Correlation) -> Panel:
    points = [
        Point(r.known[one.what], r.clean.found.mean, r.clean.found.low, r.clean.found.high)
        for r in one.rows
    ]
    panel = points_panel(
        {one.twin: points}, f"minus {one.twin}", one.what, "Clean, points", is_plain=[False]
    )
    return panel._replace(height=_HEIGHT)


def _gains(variant: Variant) -> PIDGains | None:
    """The gains of a variant that has the same in every layer, fixed, and nothing else."""
    model = variant.header.settings["recipe"].get("model", {})
    options = model.get("options", {})
    is_other = any(options.get(name) for name in ("integral_leak", "integral_limit"))
    given = model.get("gains")
    if given is None or isinstance(given, list) or model.get("learn_gains") or is_other:
        return None
    law = as_feedback(given)
    return None if isinstance(law, Feedback) else law  # whose radius is of another recursion
