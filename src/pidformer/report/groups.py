"""Models of a report: how each is called, what it is, and which it is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pidformer.robustness.compare import Group


def named_apart(groups: Sequence[Group]) -> list[Group]:
    """Models of the same name get their gains, or a number, behind it."""
    found: list[Group] = []
    labels = [group.label for group in groups]
    for place, group in enumerate(groups):
        label = group.label
        if labels.count(label) > 1:
            label = f"{label} ({group_about(group).get('gains') or 'softmax'})"
            if label in [other.label for other in found]:
                label = f"{group.label} ({place + 1})"
        found.append(Group(label, group.runs))
    return found


def twins_of(groups: Sequence[Group]) -> list[Group]:
    """What each model is compared with: the softmax one of its recipe that has most seeds in common
    with it, else the first model."""
    found = []
    for group in groups:
        recipe = group_about(group).get("recipe")
        plain = [g for g in groups if recipe and group_about(g).get("recipe") == recipe]
        plain = [g for g in plain if not is_controlled(g)] or [groups[0]]
        found.append(max(plain, key=lambda twin: len({*twin.seeds} & {*group.seeds})))
    return found


def group_about(group: Group) -> Mapping[str, Any]:
    return next(iter(group.runs[0].values())).settings


def is_controlled(group: Group) -> bool:
    gains = group_about(group).get("gains")
    return bool(gains) and "PIDGains(p=0.0, i=0.0, d=0.0" not in str(gains)


def about_text(group: Group) -> str:
    """What a model is, for the head of its column."""
    gains = group_about(group).get("gains")
    kind = short_gains(str(gains)) if gains else "no controller"
    seeds = len(group.runs)
    return f"{kind}; {seeds} seed{'s' if seeds > 1 else ''}"


def short_gains(text: str) -> str:
    """ "PIDGains(p=0.6, i=0.1, d=0.05, beta=1.0)" -> "p 0.6, i 0.1, d 0.05, beta 1.0"."""
    if text.count("PIDGains") > 1:
        return "gains by layer"
    return text.removeprefix("PIDGains(").removesuffix(")").replace("=", " ")
