"""Models side by side: runs that differ only in their seed are one model; pairs are compared."""
# S training seeds, N images

import base64
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pidformer.errors import InputError
from pidformer.results import Record, check_pair
from pidformer.statistics import Crossed, Hits, Scores, crossed_items, unpack

Rows = Mapping[str, Record]
"""Records of one run, by row."""
Pairs = Sequence[Sequence[Record]]
"""Records of the same measurement and seed: of the first model, and of the second; see `gain`."""
_NO_CONTROL = re.compile(
    r"None|PIDGains\(p=0\.0, i=0\.0, d=0\.0, [^)]*\)|, first layer controlled$"
)
"""What `gains_of` writes without control, of a layer or of all."""


class Seeded(Protocol):
    """Runs of one model, and the training seed of each."""

    @property
    def runs(self) -> Sequence[Any]: ...

    @property
    def seeds(self) -> Sequence[object]: ...


@dataclass(frozen=True)
class Group:
    """One model: its runs over training seeds."""

    label: str
    runs: tuple[Rows, ...]

    @property
    def about(self) -> Mapping[str, Any]:
        """The settings of the first run's first record."""
        return _about(self.runs[0])

    @property
    def seeds(self) -> tuple[object, ...]:
        return tuple(_about(run).get("train_seed") for run in self.runs)

    @property
    def is_controlled(self) -> bool:
        """Whether any layer has gains that are not zero."""
        return re.search(r"\w", _NO_CONTROL.sub("", str(self.about.get("gains")))) is not None

    def values(self, row: str, metric: str) -> list[float]:
        """A metric of a row over seeds, for those runs that have it."""
        found = (run[row].metrics.get(metric) for run in self.runs if row in run)
        return [value for value in found if value is not None]


def group_runs(runs: Sequence[Rows]) -> list[Group]:
    """Runs of the same recipe and gains but different seeds become one group, in order.

    Published runs carry the name of their variant, which tells them apart too.
    """
    groups: dict[tuple[object, ...], list[Rows]] = {}
    for run in (run for run in runs if run):
        about = _about(run)
        shared = ("recipe", "gains", "ema", "variant") if about.get("recipe") else ("model",)
        key: tuple[object, ...] = tuple(about.get(name) for name in shared)
        seeds = [_about(other).get("train_seed") for other in groups.get(key, [])]
        if about.get("train_seed") in seeds:  # the same seed twice is no second sample of it
            key = (*key, len(groups))
        groups.setdefault(key, []).append(run)
    return [Group(_label(found), tuple(found)) for found in groups.values()]


def named_apart(groups: Sequence[Group]) -> list[Group]:
    """Models of the same name get their gains, or a number, behind it."""
    found: list[Group] = []
    labels = [group.label for group in groups]
    for place, group in enumerate(groups):
        label = group.label
        if labels.count(label) > 1:
            label = f"{label} ({group.about.get('gains') or 'softmax'})"
            if label in [other.label for other in found]:
                label = f"{group.label} ({place + 1})"
        found.append(Group(label, group.runs))
    return found


def twins_of(groups: Sequence[Group]) -> list[Group]:
    """The softmax twin of each that shares most seeds with it, else the first model."""
    found = []
    for group in groups:
        recipe = group.about.get("recipe")
        plain = [g for g in groups if recipe and g.about.get("recipe") == recipe]
        plain = [g for g in plain if not g.is_controlled] or [groups[0]]
        found.append(max(plain, key=lambda twin: len({*twin.seeds} & {*group.seeds})))
    return found


def paired_runs(*models: Seeded) -> list[tuple[Any, ...]]:
    """The runs of each training seed that all of the models have; single runs are paired anyway."""
    if all(len(model.runs) == 1 for model in models):
        return [tuple(model.runs[0] for model in models)]
    by_seed = [dict(zip(model.seeds, model.runs, strict=True)) for model in models]
    shared = [seed for seed in by_seed[0] if all(seed in own for own in by_seed)]
    return [tuple(own[seed] for own in by_seed) for seed in shared]


def gain(values: Sequence[Any]) -> Any:
    """b - a of (a, b), and of (a, b, c, d) the difference of differences: (b - a) - (d - c)."""
    a, b, *others = values
    return (b - a) - gain(others) if others else b - a


def over_items(
    values: Callable[[Record], Scores], scale: float = 1.0
) -> Callable[[Pairs], Crossed]:
    """The comparison of plain means over items: `values` gives (N,) of a record."""

    def compare(pairs: Pairs) -> Crossed:
        found = [[values(record).astype(float) for record in pair] for pair in pairs]
        sizes = sorted({len(one) for pair in found for one in pair})
        if len(sizes) > 1:
            given = " and ".join(map(str, sizes))
            raise InputError(f"a paired comparison needs the same items of all runs, got {given}")
        return crossed_items(scale * np.stack([gain(pair) for pair in found]))

    return compare


def compare(first: Group, second: Group, row: str) -> Crossed | None:
    """second - first in points of top-1 accuracy on the same images under the same draws.

    Runs are paired by training seed. None when the row is missing on a side or holds no image's
    outcome.
    """
    found = [(a.get(row), b.get(row)) for a, b in paired_runs(first, second)]
    both = [(a, b) for a, b in found if a and b and has_outcomes(a) and has_outcomes(b)]
    for a, b in both:
        check_pair(a, b)
    return over_items(outcomes, scale=100)(both) if both else None


def has_outcomes(record: Record) -> bool:
    return "right" in record.details or "survived" in record.details


def outcomes(record: Record) -> Scores:
    """What each image did, (N,): right or not, or the share of corruptions that it survived."""
    if "survived" not in record.details:
        return hits(record)
    raw = zlib.decompress(base64.b64decode(record.details["survived"]))
    return np.frombuffer(raw, dtype=np.uint8) / record.metrics["rows"]


def pack_survived(records: Sequence[Record]) -> str:
    """The number of records in which each image was right (255 at most), as text."""
    counts = np.sum([hits(record) for record in records], axis=0).astype(np.uint8)
    return base64.b64encode(zlib.compress(counts.tobytes(), 9)).decode()


def hits(record: Record) -> Hits:
    return unpack(record.details["right"], int(record.metrics["images"]))


def _about(run: Rows) -> Mapping[str, Any]:
    return next(iter(run.values())).settings


def _label(runs: Sequence[Rows]) -> str:
    """The name of one run, or what several have in common: "pid-seed0", "pid-seed1" -> "pid"."""
    label = str(_about(runs[0])["label"])
    if len(runs) == 1:
        return label
    return re.sub(r"[-_ ]*(seed|s)?[-_ ]*\d+$", "", label) or label
