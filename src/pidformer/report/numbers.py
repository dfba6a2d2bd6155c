"""Numbers as text: means and differences with their intervals."""

from __future__ import annotations

import math

from pidformer.statistics import Crossed, Mean

NONE = "-"
"""A number that is not there."""


def minus(text: str) -> str:
    """With a proper minus sign."""
    return text.replace("-", "\u2212")


def mean_text(found: Mean | None, digits: int = 2) -> str:
    if found is None:
        return NONE
    if math.isnan(found.low):
        return minus(f"{found.mean:.{digits}f}")
    return minus(f"{found.mean:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]")


def difference_text(found: Crossed, digits: int = 2) -> str:
    text = f"{found.mean:+.{digits}f}"
    if not math.isnan(found.low):
        text += f" [{found.low:+.{digits}f}, {found.high:+.{digits}f}]"
    return minus(text)
