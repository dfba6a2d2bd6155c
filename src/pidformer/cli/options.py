"""What several commands share: options, and where tables go."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

Data = Annotated[Path | None, typer.Option(help="Folder of the data set; digits need none.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Seed = Annotated[int, typer.Option(help="What random numbers start from.")]


def tables() -> "Console":
    """Where tables go: as wide as the terminal; in a pipe or a file, as wide as they like."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=200)
