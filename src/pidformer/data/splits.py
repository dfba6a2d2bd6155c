"""The names under which a split may be stored."""

from __future__ import annotations

TRAIN = "train"
VALIDATION = ("val", "validation", "test")


def stored_names(split: str) -> tuple[str, ...]:
    """Names to look for, best first: "val" may be stored as "validation" or "test"."""
    return VALIDATION if split == "val" else (split,)
