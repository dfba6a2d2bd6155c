"""What a person sees of an evaluation: bars on a terminal, a line for each row elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from pidformer.results import Record


class Progress:
    """One bar over the rows, one over the images of the row at work."""

    def __init__(self, label: str, rows: int, *, is_shown: bool = True) -> None:
        self._console = Console(stderr=True, quiet=not is_shown)
        self._label = label
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
            self._images = self._bars.add_task("", total=None)

    def begin(self, row: str, images: int) -> Callable[[int], None]:
        """A row starts: what to call with the images done so far."""
        bars = self._bars
        if bars is None:
            return lambda done: None
        bars.reset(self._images, total=images, description=f"  {row}")
        return lambda done: bars.update(self._images, completed=done)

    def done(self, row: str, record: Record, is_old: bool) -> None:
        if self._bars is not None:
            self._bars.advance(self._rows)
        metrics = record.metrics
        score = f"top-1 {metrics['top1']:.2f} %" if "top1" in metrics else ""
        score = score or f"AUPR {metrics['aupr']:.2f} %"
        how = "already there" if is_old else f"{metrics['seconds']:.1f} s"
        line = f"{self._label}  {row}: {score}, {metrics['images']:.0f} images, {how}"
        self._console.print(line, highlight=False, soft_wrap=True)

    def __enter__(self) -> Progress:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()
