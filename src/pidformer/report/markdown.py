"""The report as Markdown: the same tables and figures, for a repository or a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pidformer.report.table_view import CellView, Note, TableView

_ENTRY = ("value", "run", "threat", "seconds")


def as_markdown(
    content: Mapping[str, Any], *, missing: Sequence[Note], entry_text: Callable[..., Any]
) -> str:
    """All of a report's content; figures are linked from figures/."""
    parts = [f"# pidformer report\n\nMade by `{content['command']}`, {content['made']}."]
    if content["findings"]:
        parts.append("\n".join(f"- {line}" for line in content["findings"]))
    parts += map(_shown, content["tables"])
    for figure in content["figures"]:
        body = f"## {figure.title}\n\n"
        if figure.panels:
            words = " ".join(alt for _, alt in figure.panels)
            body += f"![{words}](figures/{figure.name}.png)\n\n{figure.caption}"
        if figure.missing is not None:
            body += _note(figure.missing)
        parts.append(body)
    parts += map(_shown, content["details"])
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
        heads = ["row", *_ENTRY, "command"]
        rows = []
        for entry in entries:
            texts = entry_text(entry)
            rows.append([entry.row, *(texts[name] for name in _ENTRY), str(entry.command)])
        parts.append(f"### Records: {section}\n\n{table(heads, rows, left=len(heads))}")
    return "\n\n".join(parts) + "\n"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Markdown; the first `left` columns hold words, the others numbers."""
    lines = [_row(heads), _row(["---"] * left + ["---:"] * (len(heads) - left))]
    return "\n".join([*lines, *map(_row, rows)])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _shown(view: TableView) -> str:
    heads = [c.title + (f" ({c.small})" if c.small else "") for c in view.columns]
    rows = [
        [line.title + (f", {line.small}" if line.small else ""), *map(_cell, line.cells)]
        for line in view.lines
    ]
    notes = "\n\n".join(_note(note) for note in view.notes)
    return "\n\n".join(
        part for part in (f"## {view.title}", table(heads, rows), view.caption, notes) if part
    )


def _cell(cell: CellView) -> str:
    text = f"**{cell.text}**" if cell.is_clear else cell.text
    return text + (f" ({cell.small})" if cell.small else "")


def _note(note: Note) -> str:
    return note.text + (f"\n\n    {note.command}" if note.command else "")
