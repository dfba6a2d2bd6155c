"""What a person sees of a run: a bar on a terminal, plain lines elsewhere, TensorBoard if asked."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar


class Progress:
    """Shows one run; `is_shown=False` (other processes, tests) shows nothing."""

    def __init__(
        self, label: str, *, is_shown: bool = True, tensorboard: Path | None = None
    ) -> None:
        self._console = Console(stderr=True, quiet=not is_shown)
        self._label = label
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._latest: Mapping[str, float] = {}
        self._step = 0
        self._begun = time.perf_counter()
        self._writer: Any = None
        self._tensorboard = tensorboard if is_shown else None
        if is_shown and self._console.is_terminal:
            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[numbers]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self._console,
            )

    def begin(self, step: int, last_step: int) -> None:
        """Show the run from `step` on; what a killed try wrote to TensorBoard beyond is void."""
        self._step = step
        if self._tensorboard is not None and step < last_step:
            self._writer = _tensorboard_writer(self._tensorboard, purge_step=step + 1)
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(
                self._label, total=last_step, completed=step, numbers=""
            )

    def resumed(self, step: int, per_epoch: int) -> None:
        self.say(f"going on from step {step} (epoch {step / per_epoch:.2f})")

    def compiling(self, seconds: int) -> None:
        self.say(f"compiling (about {seconds} s)")

    def advance(self, step: int) -> None:
        self._step = step
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step)

    def measured(self, metrics: Mapping[str, float]) -> None:
        self._latest = metrics
        self._write("train", metrics)
        if self._bar is not None and self._task is not None:
            numbers = f"loss {metrics['loss']:.3f}  {_speed(metrics)}"
            self._bar.update(self._task, numbers=numbers)

    def scored(self, epoch: int, scores: Mapping[str, float], headline: str) -> None:
        self._write("val", scores)
        numbers = [f"epoch {epoch}"]
        if self._latest:
            numbers.append(f"loss {self._latest['loss']:.4f}")
            numbers.append(_speed(self._latest))
        numbers.append(f"val {headline} {scores[headline]:.2f}")
        self.say("  ".join(numbers))

    def say(self, line: str) -> None:
        self._console.print(f"{self._label}: {line}", highlight=False, soft_wrap=True)

    def _write(self, group: str, metrics: Mapping[str, float]) -> None:
        if self._writer is not None:
            for name, value in metrics.items():
                self._writer.add_scalar(f"{group}/{name}", value, self._step)
            self._writer.flush()  # a kill must not take what a checkpoint will not write again

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._writer is not None:
            self._writer.close()


def _speed(metrics: Mapping[str, float]) -> str:
    """Images, or tokens, a second."""
    name = next(name for name in metrics if name.endswith("_per_second"))
    return f"{metrics[name]:,.0f} {name.removesuffix('_per_second')}/s"


def _tensorboard_writer(folder: Path, purge_step: int) -> Any:
    """A TensorBoard writer, or None when the package is not installed (extra `track`).

    It tells TensorBoard to hide the events of earlier files from `purge_step` on.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=purge_step)
