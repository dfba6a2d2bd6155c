"""What was found, by model: the records of all seeds side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Any, Literal, NamedTuple

import scipy

from pidformer.results import Record

MODELS = {
    "softmax": "softmax",
    "pid": "PID",
    "softmax_no_residual": "softmax, no residual",
    "pid_no_residual": "PID, no residual",
}
"""The shipped recipes digits/*.yaml that are compared, and what they are called."""
SHOWN_BUDGET = 0.05
"""The budget in the table and in the words."""
CLASSES = 10
CHANCE = 100 / CLASSES

Order = Literal["higher", "lower", "level"]


class Score(NamedTuple):
    """Images classified right."""

    correct: int
    images: int

    @property
    def percent(self) -> float:
        return 100 * self.correct / self.images

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval, in per cent."""
        found = scipy.stats.binomtest(self.correct, self.images).proportion_ci(method="wilson")
        return 100 * float(found.low), 100 * float(found.high)


class Spread(NamedTuple):
    """A number over seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(sum(values) / len(values), min(values), max(values))


@dataclass(frozen=True, kw_only=True)
class ModelSummary:
    """One model; every tuple runs over seeds."""

    name: str
    clean: tuple[Score, ...]
    attacks: Mapping[tuple[str, float], tuple[Score, ...]]
    """By (attack, budget); budget 0 is the same images unattacked."""
    similarity: tuple[tuple[float, ...], ...]
    """By seed, then by layer."""

    @property
    def label(self) -> str:
        return MODELS[self.name]

    @property
    def last_similarity(self) -> Spread:
        return Spread.of([layers[-1] for layers in self.similarity])

    def to_dict(self, budget: float = SHOWN_BUDGET) -> dict[str, Any]:
        scores = {
            "clean": self.clean,
            "fgsm": self.attacks["FGSM", budget],
            "pgd": self.attacks["PGD", budget],
        }
        columns = {
            name: Spread.of([score.percent for score in seeds])._asdict()
            for name, seeds in scores.items()
        }
        columns["similarity"] = self.last_similarity._asdict()
        return {"model": self.name, "recipe": f"digits/{self.name}.yaml"} | columns


def summarise(records: Iterable[Record]) -> dict[str, ModelSummary]:
    """The demonstration's records by model, seeds in order."""
    ordered = sorted(records, key=lambda record: record.settings["seed"])
    return {
        name: _summary(name, [r for r in ordered if r.settings["model"] == name]) for name in MODELS
    }


def _summary(name: str, records: Sequence[Record]) -> ModelSummary:
    attacks: dict[tuple[str, float], list[Score]] = {}
    for record in records:
        if record.kind == "attack":
            attack, eps = record.settings["attack"], record.settings["eps"]
            for key in [attack] if attack else ["FGSM", "PGD"]:
                attacks.setdefault((key, eps), []).append(_score(record))
    return ModelSummary(
        name=name,
        clean=tuple(_score(r) for r in records if r.kind == "clean"),
        attacks={key: tuple(scores) for key, scores in attacks.items()},
        similarity=tuple(
            tuple(r.metrics[f"layer_{depth}"] for depth in range(1, len(r.metrics) + 1))
            for r in records
            if r.kind == "similarity"
        ),
    )


def _score(record: Record) -> Score:
    return Score(int(record.metrics["correct"]), int(record.metrics["images"]))


def pooled(scores: Sequence[Score]) -> Score:
    """All seeds as one."""
    return Score(sum(s.correct for s in scores), sum(s.images for s in scores))


class Difference(NamedTuple):
    """a - b in points: mean over seeds, its 95 % interval, and what may be said of it."""

    points: float
    low: float
    high: float
    order: Order


def compare(a: Sequence[Score], b: Sequence[Score]) -> Difference:
    """Is a higher than b? Only if no seed of b reaches one of a, and the interval leaves out zero.

    The interval is Newcombe's for two proportions, over the images of all seeds together.
    """
    first, second = pooled(a), pooled(b)
    points = first.percent - second.percent
    (a_low, a_high), (b_low, b_high) = first.interval, second.interval
    low = points - hypot(first.percent - a_low, b_high - second.percent)
    high = points + hypot(a_high - first.percent, second.percent - b_low)
    seeds_a, seeds_b = Spread.of([s.percent for s in a]), Spread.of([s.percent for s in b])
    order: Order = "level"
    if low > 0 and seeds_a.low > seeds_b.high:
        order = "higher"
    elif high < 0 and seeds_a.high < seeds_b.low:
        order = "lower"
    return Difference(points, low, high, order)
