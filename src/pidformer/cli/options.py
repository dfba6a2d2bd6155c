"""What several commands share: options, their help, and where tables go."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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


def help_of(command: Callable[..., Any]) -> str:
    """A docstring as help: each paragraph one line, to be wrapped by the terminal's width, and
    brackets as they are (typer would read `pidformer[lab]` as markup and print `pidformer`)."""
    from rich.markup import escape

    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return escape("\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs))
