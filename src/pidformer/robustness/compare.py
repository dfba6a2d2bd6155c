"""Models side by side: runs that differ only in their seed are one model; pairs are compared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pidformer.results import Record, check_pair
from pidformer.statistics import Difference, Hits, Scores, paired_difference, unpack

Rows = Mapping[str, Record]
"""Records of one run, by row."""


@dataclass(frozen=True)
class Group:
    """One model: its runs over training seeds."""

    label: str
    runs: tuple[Rows, ...]

    @property
    def seeds(self) -> tuple[object, ...]:
        return tuple(_about(run).get("train_seed") for run in self.runs)

    def values(self, row: str, metric: str) -> list[float]:
        """A metric of a row over seeds, for those runs that have it."""
        found = (run[row].metrics.get(metric) for run in self.runs if row in run)
        return [value for value in found if value is not None]


def group_runs(runs: Sequence[Rows]) -> list[Group]:
    """Runs of the same recipe and gains but different seeds become one group, in order."""
    groups: dict[tuple[object, ...], list[Rows]] = {}
    for run in (run for run in runs if run):
        about = _about(run)
        shared = ("recipe", "gains", "ema") if about.get("recipe") else ("model",)
        key: tuple[object, ...] = tuple(about.get(name) for name in shared)
        seeds = [_about(other).get("train_seed") for other in groups.get(key, [])]
        if about.get("train_seed") in seeds:  # the same seed twice is no second sample of it
            key = (*key, len(groups))
        groups.setdefault(key, []).append(run)
    return [Group(_label(found), tuple(found)) for found in groups.values()]


def compare(first: Group, second: Group, row: str, *, seed: int = 0) -> Difference | None:
    """second - first in points of top-1 accuracy on the same images under the same draws.

    Runs are paired by training seed where both have the same ones, else only single runs can be
    paired. None when the row is missing on a side or holds no image's outcome.
    """
    pairs = _pairs(first, second)
    found = [(a.get(row), b.get(row)) for a, b in pairs]
    both = [(a, b) for a, b in found if a and b and "right" in a.details and "right" in b.details]
    if not both:
        return None
    for a, b in both:
        check_pair(a, b)
    left, right = (np.stack([hits(pair[side]) for pair in both]) for side in (0, 1))
    return paired_difference(left, right, seed=seed)


def compare_mean(
    first: Group, second: Group, rows: Sequence[str], *, seed: int = 0
) -> Difference | None:
    """The same for the mean accuracy over several rows of the same images (corruptions)."""
    sides: tuple[list[Scores], list[Scores]] = ([], [])
    for pair in _pairs(first, second):
        if any(row not in run for run in pair for row in rows):
            return None
        for side, run in zip(sides, pair, strict=True):
            side.append(np.mean([hits(run[row]) for row in rows], axis=0))
        check_pair(pair[0][rows[0]], pair[1][rows[0]])
    if not sides[0]:
        return None
    return paired_difference(np.stack(sides[0]), np.stack(sides[1]), seed=seed, resamples=2000)


def hits(record: Record) -> Hits:
    """Which images of a record were classified right."""
    return unpack(record.details["right"], int(record.metrics["images"]))


def _pairs(first: Group, second: Group) -> list[tuple[Rows, Rows]]:
    if len(first.runs) == len(second.runs) == 1:
        return [(first.runs[0], second.runs[0])]
    by_seed = dict(zip(second.seeds, second.runs, strict=True))
    shared = zip(first.seeds, first.runs, strict=True)
    return [(run, by_seed[seed]) for seed, run in shared if seed in by_seed]


def _about(run: Rows) -> Mapping[str, object]:
    return next(iter(run.values())).settings


def _label(runs: Sequence[Rows]) -> str:
    """The name of one run, or what several have in common: "pid-seed0", "pid-seed1" -> "pid"."""
    label = str(_about(runs[0])["label"])
    if len(runs) == 1:
        return label
    return re.sub(r"[-_ ]*(seed|s)?[-_ ]*\d+$", "", label) or label
