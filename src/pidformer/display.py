"""What a person sees of long work, on stderr: bars on a terminal, plain lines elsewhere.

The one place that draws progress. Training, evaluation, plans and data say what has happened, and
`Display` shows it; with `is_shown=False` (other processes, tests, machines) it shows nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

T = TypeVar("T")
_REMEMBERED = 3600.0
"""Seconds of work that the time left is estimated from: a row may take many minutes."""


def plain_table(*headings: str, numbers: Iterable[str] = (), **options: Any) -> Table:
    """The one look of tables on a terminal; `numbers` are further columns, aligned right."""
    words = {"title_justify": "left", "caption_justify": "left"}
    table = Table(*headings, box=SIMPLE_HEAD, pad_edge=False, **words | options)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


class Display:
    """Lines, below them bars or a table that are kept up to date; the latter on a terminal only."""

    def __init__(
        self, *, is_shown: bool = True, stays: bool = False, in_percent: bool = False
    ) -> None:
        """`stays`: the last state is left on the terminal; `in_percent`: bars show no counts."""
        self._console = Console(stderr=True, quiet=not is_shown)
        self.is_live = is_shown and self._console.is_terminal
        how_far: ProgressColumn = TaskProgressColumn() if in_percent else MofNCompleteColumn()
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            how_far,
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            speed_estimate_period=_REMEMBERED,
        )
        self._live = Live(
            self.bars, console=self._console, refresh_per_second=4, transient=not stays
        )

    @property
    def height(self) -> int:
        return self._console.height

    def bar(self, label: str, total: int | None, done: int = 0) -> TaskID:
        """A bar for one piece of work, which `bars` moves on; `numbers` stand beside it."""
        return self.bars.add_task(label, total=total, completed=done, numbers="")

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def show(self, table: RenderableType) -> None:
        """A table in place of the bars."""
        if self.is_live:
            self._live.update(table)

    def __enter__(self) -> Self:
        if self.is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


@contextmanager
def advancing(label: str, total: int, *, is_shown: bool) -> Iterator[Callable[[int], None]]:
    """One bar, gone at the end; yields the function that moves it on."""
    with Display(is_shown=is_shown, in_percent=True) as display:
        yield partial(display.bars.advance, display.bar(label, total))


def counted(work: Iterable[T], label: str, total: int, *, is_shown: bool) -> Iterator[T]:
    """The same items, with a bar that moves on by one for each."""
    with advancing(label, total, is_shown=is_shown) as advance:
        for item in work:
            yield item
            advance(1)
