"""What a page shows of a table: columns, lines and cells of text, and the records behind them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pidformer.results import Record
from pidformer.robustness.compare import Group
from pidformer.statistics import Crossed, Mean

NONE = "-"
"""A number that is not there."""


class CellView(NamedTuple):
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


class Note(NamedTuple):
    """What is missing, and the command that would make it."""

    text: str
    command: str | None = None


class Column(NamedTuple):
    title: str
    small: str = ""
    is_paper: bool = False


class LineView(NamedTuple):
    title: str
    small: str
    cells: tuple[CellView, ...]


class TableView(NamedTuple):
    title: str
    caption: str
    columns: tuple[Column, ...]
    lines: tuple[LineView, ...]
    notes: tuple[Note, ...] = ()


def mean_cell(found: Mean | None, source: str | None, interval_digits: int = 2) -> CellView:
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


def number_text(
    found: Mean | Crossed, digits: int = 2, interval_digits: int | None = None, sign: str = ""
) -> str:
    """ "1.20 [0.40, 2.00]", with `sign` "+" "+1.20 [...]"; without an interval the number alone."""
    text = f"{found.mean:{sign}.{digits}f}"
    if math.isnan(found.low):
        return text
    low, high = (f"{e:{sign}.{interval_digits or digits}f}" for e in (found.low, found.high))
    return f"{text} [{low}, {high}]"


def minus(text: str) -> str:
    """With a proper minus sign."""
    return text.replace("-", "\u2212")


def about_text(group: Group) -> str:
    """What a model is, for the head of its column."""
    gains = group.about.get("gains")
    kind = short_gains(str(gains)) if gains else "no controller"
    seeds = len(group.runs)
    return f"{kind}; {seeds} seed{'s' if seeds > 1 else ''}"


def short_gains(text: str) -> str:
    """ "PIDGains(p=0.6, i=0.1, d=0.05, beta=1.0)" -> "p 0.6, i 0.1, d 0.05, beta 1.0"."""
    kind, bracket, numbers = text.partition("(")
    if kind == "":
        return "gains by layer"
    return (numbers if bracket else text).removesuffix(")").replace("=", " ")


class Entry(NamedTuple):
    """A record in the appendix."""

    anchor: str
    row: str
    record: Record
    command: int
    """Its place among the commands, from 1."""


@dataclass
class Sources:
    """The appendix as it grows: records under what they were used for, commands once each."""

    sections: dict[str, list[Entry]] = field(default_factory=dict)
    commands: list[tuple[str, str]] = field(default_factory=list)
    """Command and machine."""
    _anchors: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, section: str, row: str, records: Sequence[Record]) -> str | None:
        """The anchor of these records; None when there are none."""
        if not records:
            return None
        if (section, row) in self._anchors:
            return self._anchors[section, row]
        anchor = f"record-{len(self._anchors) + 1}"
        self._anchors[section, row] = anchor
        entries = self.sections.setdefault(section, [])
        for place, record in enumerate(records):
            name = anchor if place == 0 else f"{anchor}-{place + 1}"
            entries.append(Entry(name, row, record, self._command(record)))
        return anchor

    def _command(self, record: Record) -> int:
        made = str(record.settings.get("command") or "command not recorded")
        by = (made, machine_text(record))
        if by not in self.commands:
            self.commands.append(by)
        return self.commands.index(by) + 1


def machine_text(record: Record) -> str:
    """The machine of a record in a few words."""
    machine = record.settings.get("machine")
    if not isinstance(machine, dict):
        return "machine not recorded"
    place = machine.get("gpu") or f"{machine.get('cpu')}, {machine.get('cores')} cores"
    return f"{place}, Python {machine.get('python')}, torch {machine.get('torch')}"
