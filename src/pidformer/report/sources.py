"""Where the numbers of a page come from: records, and the commands and machines that made them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pidformer.results import Record


@dataclass(frozen=True)
class Entry:
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
