"""The registered hypotheses, one by one: the differences that decide each, and what they say."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from pidformer.report.metrics import Metric
from pidformer.reproduce.study import Hypothesis, Pair, StudyPlan
from pidformer.statistics import LEVEL
from study.claims import EARLY, NO_RUNS, ONE_SEED
from study.comparisons import ONE_PAIR, UNRESOLVED, Compared, Judged, registered_seeds
from study.predictors import Correlation, correlations
from study.records import Study
from study.section import Section
from study.tables import table

UNMEASURED = "not measured yet"
_OPEN = (UNRESOLVED, EARLY, ONE_SEED, UNMEASURED, NO_RUNS)
"""Verdicts that need not name their differences."""
_WORDS = (
    "The hypotheses of [study.md](study.md), in its order and words, each with the differences "
    "that decide it{images}. The verdict is about these "
    "differences: better, worse, more or less where they are resolved and all registered seeds "
    "are in; of primary hypotheses only where Holm's p (above) is below 0.05 too. The others are "
    "secondary: their intervals are not corrected for being many, and nothing is claimed by them."
)


class Answer(NamedTuple):
    """One of the differences that decide a hypothesis."""

    about: str
    text: str
    word: str


def hypotheses_section(
    study: Study,
    plan: StudyPlan,
    compared: Sequence[Compared],
    judged: Sequence[Judged],
    metrics: Callable[[int | None], Mapping[str, Metric]],
) -> list[Section]:
    """A line for each hypothesis of the plan; `judged`: the primary comparisons, corrected.

    `metrics`: by title, on a half of the images or on all (None).
    """
    if not plan.hypotheses:
        return []
    asker = _Asker(study=study, plan=plan, judged=judged, metrics=cache(metrics))
    rows = []
    for asked in plan.hypotheses:
        if asked.correlation is None:
            answers = {metric: asker.answers(asked, metric) for metric in asked.expects}
        else:
            found = correlations(study, compared)
            own = [_correlated(one) for one in found if one.what == asked.correlation]
            none = Answer(asked.correlation, f"{asked.correlation} ({NO_RUNS})", NO_RUNS)
            answers = {"": own or [none]}
        name = f"{asked.name}, primary" if _is_primary(asked, plan) else asked.name
        all_ = [answer for own in answers.values() for answer in own]
        rows.append([name, asked.text, _text(asked, answers), verdict(all_)])
    heads = ["", "hypothesis", "differences that decide it", "verdict"]
    where = "" if study.task == "language" else ", on the images that report their groups"
    words = _WORDS.format(images=where)
    return [Section(title="Hypotheses", body=[words, table(heads, rows, left=len(heads))])]


def verdict(answers: Sequence[Answer]) -> str:
    """What the differences say; those that say nothing yet are counted, the others named."""
    words: dict[str, list[str]] = {}
    for answer in sorted(answers, key=lambda a: a.word in _OPEN):
        words.setdefault(answer.word, []).append(answer.about)
    if len(words) == 1:
        return next(iter(words))
    return "; ".join(
        f"{word}: {len(own) if word in _OPEN else ', '.join(own)}" for word, own in words.items()
    )


def _text(asked: Hypothesis, answers: Mapping[str, Sequence[Answer]]) -> str:
    """The differences of each metric; what each says where they do not say the same."""
    words = {answer.word for own in answers.values() for answer in own}
    shown = words - {ONE_SEED, NO_RUNS, UNMEASURED} if len(words) > 1 else set()
    lines = []
    for metric, own in answers.items():
        expected = asked.expects.get(metric)
        if metric:
            lines.append(f"*{metric}*" + (f", expected {expected}:" if expected else ":"))
        lines += [a.text + (f", {a.word}" if a.word in shown else "") for a in own]
    return "<br>".join([*lines, *([f"({asked.note})"] if asked.note else [])])


def _is_primary(asked: Hypothesis, plan: StudyPlan) -> bool:
    all_ = {(row, metric) for row, _ in asked.pairs for metric in asked.expects}
    return bool(all_) and all_ <= {*plan.primary}


def _correlated(one: Correlation) -> Answer:
    """Rows are no sample, so a small p is a description too."""
    seeds = [row.clean.found.seeds for row in one.rows]
    rank, p = one.rank
    word = UNRESOLVED if not p < LEVEL else "positive" if rank > 0 else "negative"
    return Answer(f"with {one.twin}", one.text, ONE_SEED if min(seeds) < 2 else word)


@dataclass(frozen=True, kw_only=True)
class _Asker:
    """Finds the differences of pairs of rows, on the images that report their group."""

    study: Study
    plan: StudyPlan
    judged: Sequence[Judged]
    metrics: Callable[[int | None], Mapping[str, Metric]]

    def answers(self, asked: Hypothesis, metric: str) -> list[Answer]:
        if not asked.against:
            return [self._difference(metric, pair) for pair in asked.pairs]
        both = zip(asked.pairs, asked.against, strict=True)
        return [self._change(metric, pair, other) for pair, other in both]

    def _difference(self, metric: str, pair: Pair) -> Answer:
        about, name = f"{pair[0]} on {metric}", " minus ".join(pair)
        found = self._compare(metric, pair)
        if isinstance(found, str):
            return Answer(about, f"{name} ({found})", found)
        corrected = {(j.one.variant, j.one.twin, j.one.metric.title): j.word for j in self.judged}
        word = corrected.get((*pair, metric), found.word)
        return Answer(about, f"{name} {found.text} ({found.counted})", _said(word))

    def _change(self, metric: str, pair: Pair, other: Pair) -> Answer:
        """The difference of a pair minus that of another, after both."""
        about = f"{pair[0]} against {other[0]} on {metric}"
        both = ", against ".join(self._difference(metric, own).text for own in (pair, other))
        found = self._compare(metric, pair, other)
        if isinstance(found, str):
            return Answer(about, both, found)
        return Answer(about, f"{both}: {found.text} ({found.counted})", _said(found.word))

    def _compare(self, title: str, *pairs: Pair) -> Compared | str:
        """The difference of one pair, or of two minus each other; or why there is none."""
        named = {variant.name: variant for variant in self.study.variants}
        rows = [row for pair in pairs for row in reversed(pair)]
        known = [named[row] for row in rows if row in named]
        if len(known) < len(rows) or not set.intersection(*(set(v.seeds) for v in known)):
            return NO_RUNS
        groups = {row.name: row.group for row in self.plan.rows}
        metrics = self.metrics(self.plan.halves.get(groups[rows[1]], 1))
        found = metrics[title].difference(*known) if title in metrics else None
        if found is None:
            return UNMEASURED
        registered = registered_seeds(rows, metrics[title], self.study, self.plan)
        return Compared(*pairs[0], metrics[title], found, registered)


def _said(word: str) -> str:
    return ONE_SEED if word == ONE_PAIR else word
