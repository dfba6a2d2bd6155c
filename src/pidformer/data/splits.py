"""The names under which a split may be stored, and a split for sets that have none."""

from __future__ import annotations

import hashlib

import numpy as np

TRAIN = "train"
VALIDATION = ("val", "validation", "test")
HELD_OUT = 10


def stored_names(split: str) -> tuple[str, ...]:
    """Names to look for, best first: "val" may be stored as "validation" or "test"."""
    return VALIDATION if split == "val" else (split,)


def part_of(files: np.ndarray, groups: np.ndarray, split: str) -> np.ndarray:
    """Which files are "train", or "val", of a set without validation data.

    Of each group one in ten is held out, and one at least where there are two. A hash of the names
    chooses, so the same files are held out on every machine.
    """
    keys = np.array([hashlib.sha256(np.asarray(file).tobytes()).digest()[:8] for file in files])
    is_held = np.zeros(len(files), dtype=bool)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        count = -(-len(members) // HELD_OUT) if len(members) > 1 else 0
        is_held[members[np.argsort(keys[members], kind="stable")][:count]] = True
    return np.flatnonzero(is_held == (split != TRAIN))
