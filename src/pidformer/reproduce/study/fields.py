"""What the fields of a study may hold; anything else gets one line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pidformer.errors import InputError, shortened, unknown

Pair = tuple[str, str]
"""A row, and the row that is subtracted from it."""
_NAME = re.compile(r"\w[\w.-]*")  # part of a file's name


def mapping(what: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise InputError(
            f"{what} must be `key: value` pairs, got {shortened(given)}; see docs/study.md"
        )
    return given


def check_keys(what: str, given: Any, known: Sequence[str], needs: Sequence[str] = ()) -> None:
    for key in mapping(what, given):
        if key not in known:
            raise unknown(f"key of {what}", key, known)
    for key in needs:
        if key not in given:
            raise InputError(f"{what} has no `{key}`; it needs {', '.join(needs)}")


def text(what: str, given: Any) -> str:
    if not isinstance(given, str):
        raise InputError(f"{what} must be text, got {shortened(given)}")
    return given


def texts(what: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(entry, str) for entry in given):
        raise InputError(
            f"{what} must be a list of texts, got {shortened(given)}; see docs/study.md"
        )
    return tuple(given)


def row_name(given: Any) -> str:
    """A row's name, which its runs' folders get."""
    if not isinstance(given, str) or not _NAME.fullmatch(given):
        raise InputError(
            f"a row is named by letters, digits, dots, _ and -, got {shortened(given)}"
        )
    return given


def seeds(what: str, given: Any) -> tuple[int, ...]:
    is_list = isinstance(given, list) and given
    if not is_list or not all(type(seed) is int and seed >= 0 for seed in given):
        raise InputError(f"seeds of {what} must be a list of numbers, got {shortened(given)}")
    return tuple(given)


def half(group: str, given: Any) -> int | None:
    """1 for images with odd places, 0 for even ones, None for all."""
    halves: dict[Any, int | None] = {"odd": 1, "even": 0, "all": None}
    if not isinstance(given, str) or given not in halves:
        raise InputError(
            f"images of group {group} must be odd, even or all, got {shortened(given)}"
        )
    return halves[given]


def layers(group: str, given: Any) -> int:
    if type(given) is not int or given < 1:
        raise InputError(
            f"depth of group {group} must be a number of layers, got {shortened(given)}"
        )
    return given


def pairs(what: str, given: Any) -> tuple[Pair, ...]:
    try:
        found = [texts(what, pair) for pair in given]
        return tuple((row, other) for row, other in found)
    except (TypeError, ValueError):  # an InputError is one too
        raise InputError(
            f"{what} must be a list of [row, other row], got {shortened(given)}"
        ) from None
