"""The paper's claims, and what the records say of them."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from pidformer.errors import unknown
from pidformer.report.metrics import Metric
from pidformer.report.table_view import NONE, minus
from study.claims import (
    EARLY,
    FAILS,
    FILE,
    HOLDS,
    NO_RUNS,
    ONE_SEED,
    UNMEASURED,
    Claim,
    Claims,
    Part,
)
from study.comparisons import UNRESOLVED, Compared, compare_pairs, with_registered
from study.image_sections import image_metrics
from study.language import language_metrics
from study.records import ABOUT, Study, load_registered, registered_studies, training_length
from study.segmentation import segmentation_metrics
from study.tables import table

METRICS: Mapping[str, Callable[[Study], dict[str, Metric]]] = {
    "classification": image_metrics,
    "segmentation": segmentation_metrics,
    "language": language_metrics,
}
_WHERE = f"{FILE} or {ABOUT}"
_NAME = re.compile(r"\{([^{}/]+)/([^{}/]+)/([^{}]+)\}")  # the metric may hold slashes


class Answers:
    """Differences to softmax by name, from the runs that report, on all images."""

    def __init__(self, studies: Sequence[Study]) -> None:
        self._studies = {study.name: study.reported for study in studies}
        self._metrics = cache(lambda name: METRICS[self._studies[name].task](self._studies[name]))

    def ordered(self, names: Sequence[str]) -> list[str]:
        """These studies first, then the others."""
        there = [name for name in names if self._study(name)]
        return list(dict.fromkeys([*there, *self._studies]))

    def known(self, study: str) -> set[str]:
        """The metrics of a study."""
        return {*self._metrics(study)} if self._study(study) else set()

    def find(self, study: str, variant: str, metric: str) -> Compared | None:
        """A variant minus its twin, or "A minus B"; None where that was not measured of both."""
        one = self._study(study)
        variant, _, other = variant.partition(" minus ")
        named = {v.name: v for v in one.variants if not v.is_plain} if one else {}
        lacking = [name for name in (variant, other) if name and name not in named]
        for name in lacking:
            if not self.is_awaited(study, name):
                raise unknown(f"controlled variant of study {study} in {_WHERE}", name, named)
        if one is None or lacking:
            return None
        twin = named[other] if other else one.twin(named[variant])[0]
        if twin is None or metric not in self._metrics(study):
            return None
        pair = (variant, twin.name)
        found = compare_pairs(one, [pair], [self._metrics(study)[metric]])
        if not found or not one.is_registered:
            return found[0] if found else None
        return with_registered(found, one, load_registered(study))[0]

    def is_awaited(self, study: str, variant: str) -> bool:
        """Whether it is a registered row, softmax aside, that has no runs yet."""
        one = self._study(study)
        is_there = one is not None and variant in [v.name for v in one.variants]
        if is_there or variant.startswith("softmax") or study not in registered_studies():
            return False
        return variant in load_registered(study).seeds

    def length(self, study: str, variant: str) -> str:
        """Of the training, in words."""
        found = next(run for run in self._studies[study].runs if run.variant == variant)
        return "{} {}".format(*training_length(found))

    def _study(self, name: str) -> Study | None:
        """None of a registered one without runs."""
        if name not in self._studies and name not in registered_studies():
            raise unknown(f"study in {_WHERE}", name, self._studies)
        return self._studies.get(name)


def told(text: str, answers: Answers) -> str:
    """A text of the claims, numbers in the places of their names."""

    def number(match: re.Match[str]) -> str:
        study, variant, metric = match.groups()
        found = answers.find(study, variant, metric)
        if found is None and any(answers.is_awaited(study, v) for v in variant.split(" minus ")):
            return NO_RUNS
        if found is None:
            raise unknown(f"metric of {study}/{variant} in {_WHERE}", metric, answers.known(study))
        return f"{found.text} ({found.counted})" if found.is_partial else found.text

    return _NAME.sub(number, text)


class Answer(NamedTuple):
    """Our effect, how it was trained with how many seeds, and what it says of the claim."""

    effect: str = NONE
    where: str = ""
    verdict: str = UNMEASURED

    def cells(self, shared: str) -> list[str]:
        """`shared`: what stands above and need not be said again."""
        told = [self.effect] if self.where in ("", shared) else [self.effect, self.where]
        word = f"**{self.verdict}**" if self.verdict in (HOLDS, FAILS) else self.verdict
        return ["; ".join(told), word]


def claims_table(claims: Claims, answers: Answers, *, is_short: bool = False) -> str:
    """A line for each claim; for each kind of gains our effect, and what it says of the claim.

    How most rows were trained stands above them: in the heads of the short table.
    """
    columns, parts = claims.columns, []
    for part in claims.parts:
        own = [claim for claim in part.claims if claim.short or not is_short]
        found = {key: [_answer(part, one, key, answers) for one in own] for key in columns}
        parts.append((part, own, found))
    all_ = {key: _most([one for _, _, found in parts for one in found[key]]) for key in columns}
    heads, rows = ["the paper's claim", "its effect there"], []
    for key, title in columns.items():
        shared = f"; {all_[key]} unless said" if is_short and all_[key] else ""
        heads += [f"{title}{shared}", "verdict"]
    for part, own, found in parts:
        shared_by = all_ if is_short else {key: _most(found[key]) for key in found}
        if not is_short:
            rows.append([f"**{part.title}**", ""])
            rows[-1] += [cell for key in found for cell in (shared_by[key], "")]
        for place, claim in enumerate(own):
            rows.append([claim.short if is_short else claim.claim, claim.paper])
            rows[-1] += [c for key in found for c in found[key][place].cells(shared_by[key])]
    return table(heads, rows, left=len(heads))


def _most(found: Sequence[Answer]) -> str:
    """How most of them were trained."""
    known = [one.where for one in found if one.where]
    return max(known, key=known.count, default="")


def _answer(part: Part, claim: Claim, column: str, answers: Answers) -> Answer:
    """Of the row with the most seeds, then of the first."""
    if claim.known:
        return Answer(claim.known.get(column, ""), "", claim.verdict.get(column, ""))
    rows = part.answers.get(column, ())
    best: list[Compared] = []
    length = ""
    for study, variant in rows:
        metrics, known = claim.metrics(study), answers.known(study)
        for metric in metrics:
            if known and metric not in known:
                raise unknown(f"metric of claim {claim.claim!r} in {FILE}", metric, known)
        found = [one for m in metrics if (one := answers.find(study, variant, m)) is not None]
        if len(found) == len(metrics) and _seeds(found) > _seeds(best):
            best, length = found, answers.length(study, variant)
    if not best:
        is_awaited = any(answers.is_awaited(*row) for row in rows if claim.metrics(row[0]))
        return Answer(verdict=NO_RUNS if is_awaited else UNMEASURED)
    seeds = min(best, key=lambda one: one.found.seeds).counted
    return Answer(_effect(best), f"{length}, {seeds}", judge_claim(best, claim.expects))


def judge_claim(found: Sequence[Compared], expects: str) -> str:
    """It holds where all differences are as expected, and does not where one is the reverse.

    Nothing is decided before the seeds that were registered are in.
    """
    if _seeds(found) < 2:
        return ONE_SEED if found else UNMEASURED
    words = {one.word for one in found}
    if EARLY in words:
        return EARLY
    if words == {expects}:
        return HOLDS
    return UNRESOLVED if words <= {expects, UNRESOLVED} else FAILS


def _seeds(found: Sequence[Compared]) -> int:
    return min((one.found.seeds for one in found), default=0)


def _effect(found: Sequence[Compared]) -> str:
    if len(found) == 1:
        return found[0].text
    means = [one.found.mean for one in found]
    digits = found[0].metric.difference_digits
    spread = minus(f"{min(means):+.{digits}f} to {max(means):+.{digits}f}")
    return f"{spread} at {len(found)} budgets, {sum(one.is_resolved for one in found)} resolved"
