"""What a page shows of a table: columns, lines and cells of text."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pidformer.report.numbers import minus
from pidformer.statistics import Crossed, Mean


@dataclass(frozen=True)
class CellView:
    """A cell: its number, its interval, and the anchor of the records behind it."""

    text: str
    small: str = ""
    source: str | None = None
    is_clear: bool = False
    """A difference whose 95 % interval leaves out zero."""
    is_paper: bool = False
    """The paper's number, not ours."""


NOTHING = CellView("\u2013")
NOT_MEASURED = CellView("\u2013", "not measured")


@dataclass(frozen=True)
class Note:
    """What is missing, and the command that would make it."""

    text: str
    command: str | None = None


@dataclass(frozen=True)
class Column:
    title: str
    small: str = ""
    is_paper: bool = False


@dataclass(frozen=True)
class LineView:
    title: str
    small: str
    cells: tuple[CellView, ...]
    threat: str = ""


@dataclass(frozen=True)
class TableView:
    title: str
    caption: str
    columns: tuple[Column, ...]
    lines: tuple[LineView, ...]
    notes: tuple[Note, ...] = ()


def mean_cell(found: Mean | None, source: str | None, interval_digits: int = 2) -> CellView:
    """A mean with its 95 % interval."""
    if found is None:
        return NOT_MEASURED
    low, high = (f"{end:.{interval_digits}f}" for end in (found.low, found.high))
    small = "" if math.isnan(found.low) else f"{low} to {high}"
    return CellView(f"{found.mean:.2f}", small, source)


def difference_cell(found: Crossed | None, digits: int = 2) -> CellView:
    """A difference with its interval and p-value, marked where it is clear."""
    if found is None:
        return CellView("")
    small = ""
    if not math.isnan(found.low):
        small = f"{found.low:+.{digits - 1}f} to {found.high:+.{digits - 1}f}"
        small += "" if math.isnan(found.p) else f", p {found.p:.2g}"
    text = minus(f"{found.mean:+.{digits}f}")
    return CellView(text, minus(small), is_clear=found.verdict != 0)
