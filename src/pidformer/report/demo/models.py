"""The four models of the demonstration, from their runs' records, and the verdict in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal, NamedTuple

from pidformer.errors import InputError
from pidformer.report.collect import Run
from pidformer.report.details import layers
from pidformer.report.table1 import Table1Line, table1
from pidformer.report.table1_view import threats_sentence, twin_sentence
from pidformer.results import Record
from pidformer.robustness.compare import Group, compare, hits
from pidformer.statistics import percentage

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


class DemoModel(NamedTuple):
    """One of the four: its runs over seeds, as rows of accuracy and as similarity by layer."""

    name: str
    accuracy: Group
    """Rows "clean", on all images, and "fgsm@0.05", on `ATTACKED` of them."""
    similarity: tuple[tuple[float, ...], ...]

    @property
    def label(self) -> str:
        return MODELS[self.name]

    @property
    def is_controlled(self) -> bool:
        return self.name.startswith("pid")

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


COLLAPSED = 0.99
"""Tokens count as collapsed when their similarity in the last layer is at least this."""
TWINS = ("softmax", "PID")
Models = Mapping[str, DemoModel]


class Verdict(NamedTuple):
    headline: str
    details: str


def verdicts(models: Models) -> dict[str, Verdict]:
    """The three answers, in the order of the report."""
    return {
        "collapse": collapse_verdict(models),
        "residual": residual_verdict(models),
        "robustness": robustness_verdict(models),
    }


def collapse_verdict(models: Models) -> Verdict:
    """Without the residual: do the tokens collapse, and does the controller hold them?"""
    softmax, pid = models["softmax_no_residual"], models["pid_no_residual"]
    fates = _fate(softmax), _fate(pid)
    began = {"all": "collapsed", "some": "collapsed with some seeds", "none": "did not collapse"}
    held = {
        ("all", "all"): "collapsed as well",
        ("none", "none"): "did not collapse either",
        ("all", "none"): "kept its tokens apart",
        ("some", "none"): "kept its tokens apart",
    }.get(fates, began[fates[1]])
    found = compare(softmax.accuracy, pid.accuracy, "clean")
    order = "no clear difference from softmax"
    if found is not None and found.verdict:
        order = "better than softmax" if found.mean > 0 else "worse than softmax"
    return Verdict(
        f"Without the residual around attention, softmax {began[fates[0]]}: token similarity "
        f"{softmax.last_similarity.mean:.3f} in the last layer, accuracy "
        f"{_accuracy(softmax)}. The controlled twin {held}: similarity "
        f"{pid.last_similarity.mean:.3f}, accuracy {_accuracy(pid)}, {order}.",
        f"Without the residual, {_onset(softmax)}; {_onset(pid)}.",
    )


def residual_verdict(models: Models) -> Verdict:
    """With the residual: which twin is more accurate, and are tokens less alike?"""
    clean = next(line for line in _lines(models) if line.title == "Clean")
    own, other = (models[name].last_similarity for name in ("pid", "softmax"))
    if own.high < other.low:
        alike = "less alike than"
    elif own.low > other.high:
        alike = "more alike than"
    else:
        alike = "about as alike as"
    return Verdict(
        f"With the residual, clean accuracy: {twin_sentence(clean, TWINS, 1)}",
        f"With the residual, the tokens of PID end {alike} those of softmax: similarity "
        f"{own.mean:.3f} and {other.mean:.3f}.",
    )


def robustness_verdict(models: Models) -> Verdict:
    """Under attack, with the residual; and a warning about models at chance."""
    lines = _lines(models)
    parts = [
        f"{line.title.replace(' ', ' at eps ')}: {twin_sentence(line, TWINS, 1)}"
        for line in lines
        if line.title.endswith(f" {SHOWN}")
    ]
    guessing = [model.label for model in models.values() if is_at_chance(model)]
    if guessing:
        parts.append(
            f"A model at chance ({'; '.join(guessing)}) has nothing left to lose: that its "
            "accuracy hardly falls is no robustness."
        )
    headline = f"With the residual, under {threats_sentence(lines, TWINS, 1)}"
    return Verdict(headline, " ".join(parts))


def _lines(models: Models) -> list[Table1Line]:
    """The twins with the residual as in Table 1, without the attacks of budget 0."""
    groups = []
    for name, label in zip(("softmax", "pid"), TWINS, strict=True):
        runs = models[name].accuracy.runs
        kept = ({n: r for n, r in run.items() if r.settings.get("eps") != 0} for run in runs)
        groups.append(Group(label, tuple(kept)))
    return [line for line in table1(groups) if line.metric == "top-1"]


def is_at_chance(model: DemoModel) -> bool:
    """Not better than guessing, by the 95 % interval over the images of all seeds."""
    outcomes = [hits(run["clean"]) for run in model.accuracy.runs]
    right, images = (sum(map(count, outcomes)) for count in (sum, len))
    return percentage("top1", int(right), images)["top1_low"] <= CHANCE


def _accuracy(model: DemoModel) -> str:
    chance = f" (chance is {CHANCE:.0f} %)" if is_at_chance(model) else ""
    return f"{model.percent('clean').mean:.1f} %{chance}"


def _fate(model: DemoModel) -> Literal["all", "some", "none"]:
    """With how many of the seeds the tokens collapsed."""
    similarity = model.last_similarity
    if similarity.low >= COLLAPSED:
        return "all"
    return "some" if similarity.high >= COLLAPSED else "none"


def _onset(model: DemoModel) -> str:
    """The layer from which on the tokens are alike."""
    means = [Spread.of(layer).mean for layer in zip(*model.similarity, strict=True)]
    apart = [depth for depth, mean in enumerate(means, 1) if mean < COLLAPSED]
    kind = model.label.split(",")[0]
    if apart and apart[-1] == len(means):
        return f"the tokens of {kind} were not alike in the end (similarity below {COLLAPSED:g})"
    first = apart[-1] + 1 if apart else 1
    return f"the tokens of {kind} were alike (similarity {COLLAPSED:g} or more) from layer {first}"
