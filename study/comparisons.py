"""Variants against their softmax twins: what the intervals say, in words, and Holm's correction."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from pidformer.report.metrics import Metric
from pidformer.report.table_view import NONE, minus, number_text
from pidformer.reproduce.study import StudyPlan
from pidformer.statistics import LEVEL, Crossed, Mean
from study.claims import EARLY
from study.records import Study

UNRESOLVED = "not resolved"
ONE_PAIR = "one pair of runs, silent on other seeds"
_SILENT = "silent on other seeds: the intervals are for other images and these trained networks."
MANY = 6
"""Differences of a variant from which on a finding is a list of names; the table has the rest."""


def holm(p_values: Sequence[float], family: int = 0) -> list[float]:
    """Holm's adjusted p-values, in the given order; NaN stays NaN and is not counted.

    `family`: how many there will be. Those still to come count as 1, so that what is below 0.05
    now stays below it whatever they turn out to be.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest, count = [math.nan] * len(p_values), 0.0, max(len(known), family)
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, (count - rank) * p))
        adjusted[place] = largest
    return adjusted


class Compared(NamedTuple):
    """A variant against its twin on one metric."""

    variant: str
    twin: str
    metric: Metric
    found: Crossed
    registered: int = 0
    """Seeds that the study asked for; 0: not known."""

    @property
    def is_partial(self) -> bool:
        return self.found.seeds < self.registered

    @property
    def seeds_text(self) -> str:
        """How many seeds there are, and of how many while some are still to come."""
        count = str(self.found.seeds)
        return f"{count} of {self.registered}" if self.is_partial else count

    @property
    def counted(self) -> str:
        """ "3 of 5 seeds"."""
        return f"{self.seeds_text} seed{'' if self.seeds_text == '1' else 's'}"

    @property
    def is_resolved(self) -> bool:
        """Whether interval and p leave out zero, and all seeds that were registered are in.

        Of one pair of runs none speaks of the method.
        """
        return self.found.seeds > 1 and self.found.verdict != 0 and not self.is_partial

    @property
    def word(self) -> str:
        """better, worse (or more, less), not resolved, or not decided yet."""
        if self.found.seeds < 2:
            return ONE_PAIR
        if self.is_partial:
            return EARLY
        if not self.is_resolved:
            return UNRESOLVED
        if self.metric.better == 0:
            return "more" if self.found.verdict > 0 else "less"
        return "better" if self.found.verdict == self.metric.better else "worse"

    @property
    def text(self) -> str:
        return difference_text(self.found, self.metric.difference_digits)


def compare_all(study: Study, metrics: Sequence[Metric]) -> list[Compared]:
    """Every variant with a twin, on every metric that both have."""
    found = []
    for variant in study.variants:
        twin, _ = study.twin(variant)
        if twin is None:
            continue
        for metric in metrics:
            difference = metric.difference(twin, variant)
            if difference is not None:
                found.append(Compared(variant.name, twin.name, metric, difference))
    return found


def compare_pairs(
    study: Study, pairs: Sequence[tuple[str, str]], metrics: Sequence[Metric]
) -> list[Compared]:
    """The first of each pair minus the second, where the study has both."""
    named = {variant.name: variant for variant in study.variants}
    found = []
    for name, other in pairs:
        if name in named and other in named:
            for metric in metrics:
                difference = metric.difference(named[other], named[name])
                if difference is not None:
                    found.append(Compared(name, other, metric, difference))
    return found


_MEASURE = re.compile(r"--(suite|curve) (\S+)")  # in the command of a record


def with_registered(compared: Sequence[Compared], study: Study, plan: StudyPlan) -> list[Compared]:
    """Each with the number of seeds that its row was to be measured with."""
    return [
        one._replace(registered=registered_seeds((one.variant, one.twin), one.metric, study, plan))
        for one in compared
    ]


def registered_seeds(rows: Sequence[str], metric: Metric, study: Study, plan: StudyPlan) -> int:
    """How many seeds all of these rows were to be measured with; 0 where the first is no row."""
    found = [_registered(row, metric, study, plan) for row in rows if row in plan.seeds]
    return len(set.intersection(*found)) if rows[0] in plan.seeds else 0


def _registered(name: str, metric: Metric, study: Study, plan: StudyPlan) -> set[int]:
    """The seeds of a row; where a suite or a curve measures some of them only, these."""
    own = (metric.find(run) for run in study.runs if run.variant == name)
    record = next((record for record in own if record is not None), None)
    said = _MEASURE.search(str(record.settings.get("command", ""))) if record else None
    seeds: set[int] = set()
    for row in (row for row in plan.rows if row.name == name):
        measures = [
            measure
            for name, measure in row.suites.items()
            if said and (measure.curve if said[1] == "curve" else name == said[2])
        ]
        seeds |= {s for s in row.seeds if not measures or any(m.covers(s) for m in measures)}
    return seeds


def mean_text(found: Mean | None, digits: int = 2) -> str:
    if found is None:
        return NONE
    return minus(number_text(found, digits))


def difference_text(found: Crossed, digits: int = 2) -> str:
    return minus(number_text(found, digits, sign="+"))


def findings(compared: Sequence[Compared]) -> list[str]:
    """What the intervals say, a line for each variant, and what is left after Holm.

    Variants with one pair of runs share a line: the table has their differences, and there is
    nothing to be said of them.
    """
    lines, single = [], []
    for name in dict.fromkeys(one.variant for one in compared):
        own = [one for one in compared if one.variant == name]
        if all(one.found.seeds < 2 for one in own):
            single.append(name)
            continue
        parts: list[str] = []
        for word in ("better", "worse", "more", "less", UNRESOLVED, EARLY, ONE_PAIR):
            found = [one for one in own if one.word == word]
            said = [one.metric.title + f" {one.text}" * (len(own) < MANY) for one in found]
            if word in (UNRESOLVED, EARLY, ONE_PAIR) and len(own) >= MANY:
                said = [str(len(said))] if said else []
            if said:
                names = ("; " if len(own) >= MANY else ", ").join(said)
                parts.append(f"{word.capitalize()}: {names}.")
        seeds = {one.found.seeds for one in own}
        count = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else str(min(seeds))
        most = max(own, key=lambda one: one.found.seeds)
        count += f" of {most.registered}" if most.is_partial else ""
        lines.append(f"**{name}** minus {own[0].twin} ({count} seeds). {' '.join(parts)}")
    if single:
        pair = f"one pair of runs{' each' if len(single) > 1 else ''}, {_SILENT}"
        names = ", ".join(f"**{name}**" for name in single)
        lines.append(f"{names}: {pair}" if lines else pair[:1].upper() + pair[1:])
    several = [one for one in compared if one.found.seeds > 1]
    judged = [one for one in several if one.metric.better]
    if len(judged) > 1:
        lines.append(_after_holm(judged, is_all=len(judged) == len(several)))
    return lines


class Judged(NamedTuple):
    """A comparison that was corrected together with others."""

    one: Compared
    p: float
    """Holm's."""

    @property
    def word(self) -> str:
        """That of the comparison, if it stands after the correction."""
        is_open = self.one.word in (EARLY, ONE_PAIR)
        return self.one.word if self.p < LEVEL or is_open else UNRESOLVED


def judge(compared: Sequence[Compared], family: int = 0) -> list[Judged]:
    """By Holm over all of them, or over a `family` of more."""
    adjusted = holm([one.found.p for one in compared], family)
    return [Judged(one, p) for one, p in zip(compared, adjusted, strict=True)]


def judge_primary(compared: Sequence[Compared], plan: StudyPlan) -> list[Judged]:
    """The primary comparisons that were made, corrected for all that were registered."""
    made = {(one.variant, one.metric.title): one for one in compared}
    return judge([made[key] for key in plan.primary if key in made], len(plan.primary))


def family_text(judged: Sequence[Judged], plan: StudyPlan) -> str:
    """What stands above their table."""
    count, made = len(plan.primary), len(judged)
    if made == count:
        return f"Holm's p is over these {count}:"
    return f"Holm's p is over {count}; the {count - made} that no run has answered count as p = 1:"


def wins_text(judged: Sequence[Judged], plan: StudyPlan) -> str:
    """Rows that are better, or worse, in everything that was registered for them.

    While one of them lacks seeds nothing is decided.
    """
    made = {(each.one.variant, each.one.metric.title): each.one for each in judged}
    there, lacking = {row for row, _ in made}, dict[str, str]()
    for row, metric in plan.primary:
        one = made.get((row, metric))
        if one is None:
            lacking.setdefault(row, f"no {metric}" if row in there else "no seeds")
        elif one.is_partial:
            lacking.setdefault(row, f"{one.seeds_text} seeds")
    if lacking:
        rows = ", ".join(f"{row} ({what})" for row, what in lacking.items())
        return f"Not decided yet, a look at what is there: {rows}."
    metrics = list(dict.fromkeys(each.one.metric.title for each in judged))
    words: dict[str, list[str]] = {}
    for each in judged:
        words.setdefault(each.one.variant, []).append(each.word)
    parts = []
    for name, word in (("wins", "better"), ("losses", "worse")):
        own = [row for row, found in words.items() if found == [word] * len(metrics)]
        parts.append(f"{name}: {', '.join(own) if own else 'none'}")
    rule = f"{' and '.join(metrics)}, each after Holm's correction"
    return f"Of {len(words)} candidates, by the rule of study.md ({rule}): {'; '.join(parts)}."


def _after_holm(judged: Sequence[Compared], is_all: bool) -> str:
    adjusted = holm([one.found.p for one in judged])
    resolved = sum(one.is_resolved for one in judged)
    kept = [
        f"{one.variant} {one.word} on {one.metric.title} (p {p:.2g})"
        for one, p in zip(judged, adjusted, strict=True)
        if p < LEVEL and one.is_resolved
    ]
    verb = "remains" if len(kept) == 1 else "remain"
    left = f"{len(kept)} {verb}: {'; '.join(kept)}" if kept else "none remains"
    have = "is" if resolved == 1 else "are"
    which = "" if is_all else "that may be better or worse "
    if not resolved:
        return f"None of these {len(judged)} differences {which}is resolved."
    return (
        f"Of these {len(judged)} differences {which}{resolved} {have} resolved; after Holm's "
        f"correction for looking at {len(judged)}, {left}."
    )
