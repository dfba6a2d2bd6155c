"""A rule by which a study takes one more of its rows for a candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pidformer.errors import unknown
from pidformer.studies.fields import check_keys, texts

_CHOICE = ("groups", "without", "metrics")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The row, once all have their seeds, whose differences to softmax have the largest sum."""

    rows: tuple[str, ...]
    metrics: tuple[str, ...]
    """Whose mean differences are added."""


def read_choice(given: Any, groups: Mapping[str, Any]) -> Choice:
    """Of the rows of some groups, without those named."""
    check_keys("choose", given, _CHOICE, needs=("groups", "metrics"))
    chosen = texts("groups of choose", given["groups"])
    without = texts("without of choose", given.get("without", []))
    for group in chosen:
        if group not in groups:
            raise unknown("group of the study", group, groups)
    rows = [row for group in chosen for row in groups[group]["rows"]]
    for name in without:
        if name not in rows:
            raise unknown("row of the groups to choose from", name, rows)
    return Choice(
        rows=tuple(row for row in rows if row not in without),
        metrics=texts("metrics of choose", given["metrics"]),
    )
