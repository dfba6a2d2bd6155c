"""What all pictures share: colours and the look of axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pidformer.errors import InputError

SOFTMAX, PID, INK, FAINT = "#d9622b", "#2f81c7", "#24292f", "#cfd6dd"
GOOD, BAD, GREY = "#1b7f5c", "#c0392b", "#8a8f98"
OTHERS = ("#1b7f5c", "#8e4ec6", "#b58900", "#c2255c", "#0c8599", "#6b7280")
FORMATS = (".png", ".svg", ".pdf")


def style() -> Any:
    """Settings for `matplotlib.rc_context`."""
    names = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.titlecolor")
    return dict.fromkeys(names, INK) | {
        "axes.edgecolor": FAINT,
        "grid.color": FAINT,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 11.5,
        "axes.titlesize": 12.5,
        "legend.frameon": False,
        "legend.labelcolor": INK,
    }


def run_colors(is_controlled: Sequence[bool]) -> list[str]:
    """A colour for each run: the first softmax and the first controlled one have their own."""
    free = {False: [SOFTMAX], True: [PID]}
    others = list(OTHERS) * (1 + len(is_controlled) // len(OTHERS))
    return [free[flag].pop() if free[flag] else others.pop(0) for flag in is_controlled]


LEAST_I = 1e-3
"""Stands for i = 0 where radii of controllers with an integral are shaded: at 0 itself their slow
mode is gone, and the shade between it and the next gain would be of neither."""


def check_format(path: str | Path, known: Sequence[str] = FORMATS) -> None:
    """Refuse a picture's name whose ending names no format."""
    if Path(path).suffix.lower() not in known:
        raise InputError(f"cannot plot to {path}: the name must end in {', '.join(known)}")
