"""What several commands share: options, their help, and where tables go."""

import ast
import inspect
import json
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from pidformer.fields import check_seed

if TYPE_CHECKING:
    from rich.console import Console

Data = Annotated[Path | None, typer.Option(help="Folder of the data set; digits need none.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Jobs = Annotated[
    int | None,
    typer.Option(help="Processes to start; by default one per core, on a GPU one.", metavar="N"),
]
Models = Annotated[
    list[str],
    typer.Argument(
        help="Run folders, timm:NAME (or timm:NAME@weights.safetensors), hf:FOLDER, or "
        "module:function that returns a model of images in [0, 1].",
        metavar="MODEL",
    ),
]
OtherGains = Annotated[
    str | None, typer.Option(help="Other gains than the run was trained with: P,I,D[,BETA].")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Seed = Annotated[int, typer.Option(help="Random seed.", callback=check_seed)]


class _Flags:
    """Help that shows no value beside a flag: --json, not --json <bool>."""

    def get_params(self, ctx: Any) -> list[Any]:
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for option in found:
            if getattr(option, "is_flag", False):
                option.metavar = ""
        return found


class Command(_Flags, TyperCommand):
    """One of our commands."""


class CommandGroup(_Flags, TyperGroup):
    """Several of them."""


def show_help(context: typer.Context) -> None:
    """What a group says when none of its commands is named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def command_line() -> str:
    """What was typed, for the records."""
    return shlex.join(["pidformer", *sys.argv[1:]])


def print_json(found: Any) -> None:
    typer.echo(json.dumps(found))


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Work that saves what it has when it is stopped: says so, and ends with the signal's code."""
    from pidformer.interrupts import Interrupted, exit_code

    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stopped:
        typer.echo(f"saved in {out}; run the same command to go on", err=True)
        raise typer.Exit(exit_code(stopped)) from None


def tables() -> "Console":
    """Where tables go: as wide as the terminal; in a pipe or a file, as wide as they like."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=200)


def print_facts(console: "Console", text: str) -> None:
    """Lines of a name and its text, long ones wrapped below the text; "unstable" is red."""
    from rich.text import Text

    if console.is_terminal:
        whole: Any = {"break_long_words": False, "break_on_hyphens": False}
        below = " " * 16  # where the words begin, in a stability report or a certificate
        wrapper = textwrap.TextWrapper(console.width, subsequent_indent=below, **whole)
        text = "\n".join(part for line in text.splitlines() for part in wrapper.wrap(line))
    shown = Text(text)
    shown.highlight_regex(r"\bunstable\b", "bold red")
    console.print(shown, soft_wrap=True)


_OPTION = re.compile(r"^    (--)?([\w-]+)(?: ([A-Z]+))?: ((?:.|\n {8})+)", re.MULTILINE)


def register(app: typer.Typer, command: Callable[..., None]) -> None:
    """Make a function a command: its docstring is the help.

    Below "Options:" it has `argument: help` or `--option: help` for each parameter whose type is
    none of those above; `--option VALUE: help` gives the value a name.
    """
    from rich.markup import escape  # or help would take `pidformer[lab]` for markup

    words = command.__doc__
    if words is None:  # python -OO
        words = ast.get_docstring(ast.parse(inspect.getsource(command)).body[0])  # type: ignore
    text, _, options = inspect.cleandoc(words or "").partition("\n\nOptions:\n")
    hints = get_type_hints(command, include_extras=True)
    for dashes, name, value, line in _OPTION.findall(options):
        key = name.replace("-", "_")
        make: Any = typer.Option if dashes else typer.Argument
        flag = [f"--{name}"] if hints[key] is bool else []
        about = make(*flag, help=escape(" ".join(line.split())), metavar=value or None)
        hints[key] = Annotated[hints[key], about]
    command.__annotations__ = hints
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\n|\n(?=Example: )", text))
    app.command(help=escape("\n\n".join(paragraphs)), cls=Command)(command)
