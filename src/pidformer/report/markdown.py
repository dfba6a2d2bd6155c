"""The report as Markdown: the same tables and figures, for a repository or a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pidformer.report.views import CellView, Note, TableView

_ENTRY = ("value", "run", "threat", "seconds")


def as_markdown(
    content: Mapping[str, Any], *, missing: Sequence[Note], entry_text: Callable[..., Any]
) -> str:
    """All of a report's content; figures are linked from figures/."""
    parts = [f"# pidformer report\n\nMade by `{content['command']}`, {content['made']}."]
    if content["findings"]:
        parts.append("\n".join(f"- {line}" for line in content["findings"]))
    for table in content["tables"]:
        parts.append(_table(table))
    for figure in content["figures"]:
        body = f"## {figure.title}\n\n"
        if figure.panels:
            words = " ".join(alt for _, alt in figure.panels)
            body += f"![{words}](figures/{figure.name}.png)\n\n{figure.caption}"
        if figure.missing is not None:
            body += _note(figure.missing)
        parts.append(body)
    parts += [_table(table) for table in content["details"]]
    if content["verdicts"]:
        said = "\n".join(f"- {run}: {verdict}" for run, verdict in content["verdicts"])
        parts.append(f"## Certificates\n\n{said}")
    if missing:
        parts.append("## Not measured")
        parts += [_note(note) for note in missing]
    sources = content["sources"]
    commands = (
        f"{place}. `{command}` ({machine})"
        for place, (command, machine) in enumerate(sources.commands, 1)
    )
    parts.append("## Commands\n\n" + "\n".join(commands))
    for section, entries in sources.sections.items():
        lines = ["| row | value | run | threat | seconds | command |", "|---|---|---|---|---|---|"]
        for entry in entries:
            texts = {key: _escaped(value) for key, value in entry_text(entry).items()}
            lines.append(
                _row([_escaped(entry.row), *(texts[name] for name in _ENTRY), str(entry.command)])
            )
        parts.append(f"### Records: {section}\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _table(table: TableView) -> str:
    heads = [c.title + (f" ({c.small})" if c.small else "") for c in table.columns]
    lines = [_row(heads), _row(["---"] + ["--:"] * (len(heads) - 1))]
    for line in table.lines:
        title = line.title + (f", {line.small}" if line.small else "")
        lines.append(_row([_escaped(title), *map(_cell, line.cells)]))
    notes = "\n\n".join(_note(note) for note in table.notes)
    return "\n\n".join(
        p for p in (f"## {table.title}", "\n".join(lines), table.caption, notes) if p
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: CellView) -> str:
    text = f"**{cell.text}**" if cell.is_clear else cell.text
    return _escaped(text + (f" ({cell.small})" if cell.small else ""))


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")


def _note(note: Note) -> str:
    return note.text + (f"\n\n    {note.command}" if note.command else "")
