"""What a whole plan would cost, for docs/reproduce.md: the rehearsals in results/rehearsals/."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from pidformer.errors import InputError
from pidformer.reproduce.display import REHEARSAL_HEADS, rehearsal_cells, rehearsal_sum
from pidformer.reproduce.rehearsal import Rehearsal, read_rehearsal
from study.tables import table

FOLDER = "rehearsals"
PAGE = "reproduce.md"
BEGIN, END = "<!-- rehearsals: made by python -m study -->", "<!-- end of rehearsals -->"
"""In docs/reproduce.md: what is between them is made again."""


def rehearsals_text(folders: Sequence[str | Path]) -> str:
    """A table for each, with the sum over it; nothing where there are none."""
    paths = chain.from_iterable(sorted((Path(f) / FOLDER).glob("*.json")) for f in folders)
    return "\n\n".join(_text(path) for path in paths)


def _text(path: Path) -> str:
    found = read_rehearsal(path)
    if found is None or not found.is_whole:
        raise InputError(
            f"{path} is no rehearsal that came to its end; run the same command again, and copy "
            "its OUT/rehearsal.json"
        )
    return f"`results/{FOLDER}/{path.name}`: {rehearsal_sum(found)}.\n\n{_table(found)}"


def _table(found: Rehearsal) -> str:
    """All cells of a line: one that failed has fewer."""
    rows = [rehearsal_cells(kind) for kind in found.kinds]
    empty = [""] * len(REHEARSAL_HEADS)
    return table(REHEARSAL_HEADS, [(row + empty)[: len(empty)] for row in rows])
