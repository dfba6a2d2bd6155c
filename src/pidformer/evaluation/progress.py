"""What a person sees of an evaluation: bars on a terminal, a line for each row elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from pidformer.results import Record

Watch = Callable[[int], None]
"""Called with the inputs done so far."""


class Progress:
    """One bar over the rows, one over the inputs of the row at work."""

    def __init__(self, label: str, rows: int | None, *, is_shown: bool = True) -> None:
        self._console = Console(stderr=True, quiet=not is_shown)
        self._label, self._begun = label, time.perf_counter()
        self._bars: Bars | None = None
        if is_shown and self._console.is_terminal:
            self._bars = Bars(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._rows = self._bars.add_task(label, total=rows)
            self._inputs = self._bars.add_task("", total=None)

    def begin(self, row: str, total: int | None = None) -> Watch:
        """A row starts; returns what to call with the inputs done so far."""
        bars, self._begun = self._bars, time.perf_counter()
        if bars is None:
            return lambda done: None
        bars.reset(self._inputs, total=total, description=f"  {row}")
        return lambda done: bars.update(self._inputs, completed=done)

    def begin_steps(self, row: str, total: int) -> Watch:
        """The same, to be called with the inputs just done."""
        self.begin(row, total)
        bars = self._bars
        return lambda number: None if bars is None else bars.advance(self._inputs, number)

    def done(self, row: str, record: Record, is_old: bool) -> None:
        if self._bars is not None:
            self._bars.advance(self._rows)
        how = "already there" if is_old else f"{time.perf_counter() - self._begun:.1f} s"
        line = ", ".join([*_scores(record), how])
        self._console.print(f"{self._label}  {row}: {line}", highlight=False, soft_wrap=True)

    def __enter__(self) -> Progress:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()


_SCORES = {"top1": "top-1 {:.2f} %", "aupr": "AUPR {:.2f} %", "miou": "mIoU {:.2f}"}
_SCORES |= {"ppl": "perplexity {:.2f}", "images": "{:.0f} images", "tokens": "{:.0f} tokens"}


def _scores(record: Record) -> list[str]:
    found = record.metrics
    return [text.format(found[name]) for name, text in _SCORES.items() if name in found]
