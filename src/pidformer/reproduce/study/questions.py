"""What a study asks: hypotheses, and which row becomes one more candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pidformer.errors import InputError, shortened, unknown
from pidformer.reproduce.study.fields import Pair, check_keys, mapping, pairs, texts

_CHOICE = ("groups", "without", "metrics")
_HYPOTHESIS = ("text", "pairs", "against", "correlation", "expects", "note")
EXPECTED = ("better", "worse", "more", "less", "level", None)
"""What a hypothesis may expect of a difference; None: it has no direction."""
CORRELATES = (
    "largest radius",
    "measured radius",
    "control's size at first",
    "control's size, trained",
)
"""What a hypothesis may set beside the differences of all rows."""


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """What was asked, and the differences that answer it."""

    name: str
    text: str
    expects: Mapping[str, str | None]
    """The metrics that decide it, and what it expects of each."""
    pairs: tuple[Pair, ...] = ()
    against: tuple[Pair, ...] = ()
    """For each pair another, whose difference is taken off: does the first change?"""
    correlation: str | None = None
    """Instead of pairs: what may go with the differences of all rows."""
    note: str = ""


def read_hypothesis(name: str, about: Any) -> Hypothesis:
    what = f"hypothesis {name}"
    check_keys(what, about, _HYPOTHESIS, needs=("text", "expects"))
    expects = mapping(f"expects of {what}", about["expects"])
    for metric, word in expects.items():
        if not isinstance(word, str | None) or word not in EXPECTED:
            allowed = ", ".join(str(one or "null") for one in EXPECTED)
            raise InputError(
                f"{what} expects {shortened(word)} of {metric}; it may expect {allowed}"
            )
    correlation = about.get("correlation")
    if correlation is not None and correlation not in CORRELATES:
        raise unknown(f"correlation of {what}", str(correlation), CORRELATES)
    differences = pairs(f"pairs of {what}", about.get("pairs", []))
    against = pairs(f"against of {what}", about.get("against", []))
    if bool(differences) == bool(correlation) or not expects:
        raise InputError(f"{what} needs metrics in `expects`, and `pairs` or a `correlation`")
    if against and len(against) != len(differences):
        raise InputError(f"{what} has {len(differences)} pairs and {len(against)} against them")
    return Hypothesis(
        name=name,
        text=str(about["text"]),
        expects=expects,
        pairs=differences,
        against=against,
        correlation=correlation,
        note=str(about.get("note", "")),
    )


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
