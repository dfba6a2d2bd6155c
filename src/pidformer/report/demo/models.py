"""The four models of the demonstration, as their runs' records tell of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from pidformer.errors import InputError
from pidformer.report.details import layers
from pidformer.report.run import Run
from pidformer.results import Record
from pidformer.robustness.compare import Group

MODELS = {
    "softmax": "softmax",
    "pid": "PID",
    "softmax_no_residual": "softmax, no residual",
    "pid_no_residual": "PID, no residual",
}
"""The shipped recipes digits/*.yaml that are compared, and what they are called."""
ATTACKED = 180
"""Attacks see half of the validation images, to stay within two minutes."""
SHOWN = "0.05"
"""The budget in the table and in the words."""
CHANCE = 10.0


class Spread(NamedTuple):
    """A number over training seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(fmean(values), min(values), max(values))


@dataclass(frozen=True)
class DemoModel:
    """One of the four: its runs over seeds, as rows of accuracy and as similarity by layer."""

    name: str
    accuracy: Group
    """Rows "clean", on all images, and "fgsm@0.05", on `ATTACKED` of them."""
    similarity: tuple[tuple[float, ...], ...]

    @property
    def label(self) -> str:
        return MODELS[self.name]

    @property
    def last_similarity(self) -> Spread:
        return Spread.of([run[-1] for run in self.similarity])

    def percent(self, row: str) -> Spread:
        return Spread.of(self.accuracy.values(row, "top1"))

    def to_dict(self) -> dict[str, Any]:
        rows = {"clean": "clean", "fgsm": f"fgsm@{SHOWN}", "pgd": f"pgd@{SHOWN}"}
        return (
            {"model": self.name, "recipe": f"digits/{self.name}.yaml"}
            | {column: self.percent(row)._asdict() for column, row in rows.items()}
            | {"similarity": self.last_similarity._asdict()}
        )


def read_models(runs: Sequence[Run]) -> dict[str, DemoModel]:
    """The four models, told by the names of their run folders (MODEL-seedN)."""
    found = {}
    for name in MODELS:
        own = [run for run in runs if run.label.rpartition("-seed")[0] == name]
        own.sort(key=lambda run: int(run.label.rpartition("-seed")[2]))
        rows = [_rows(run) for run in own]
        tokens = [run.of("analysis", what="token_similarity") for run in own]
        if (
            not own
            or not all({"clean", f"pgd@{SHOWN}"} <= set(row) for row in rows)
            or not all(tokens)
        ):
            raise InputError(f"{MODELS[name]} has no finished run; run the same command to go on")
        similarity = tuple(layers(records[0]) for records in tokens)
        found[name] = DemoModel(name, Group(MODELS[name], tuple(rows)), similarity)
    return found


def _rows(run: Run) -> dict[str, Record]:
    """What the demonstration measured, whatever else was measured since."""
    clean = run.of("robustness", row="clean", domain="pixel", seed=0, limit=None)
    attacked = run.of("robustness", suite="demo", domain="pixel", seed=0, limit=ATTACKED)
    found: dict[str, Record] = {}
    for record in (*clean, *attacked):
        found.setdefault(str(record.settings["row"]), record)  # later ones may be of other gains
    return found
