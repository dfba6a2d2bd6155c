"""What a person sees while the demonstration works: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pidformer import results
from pidformer.demo.measure import Job
from pidformer.demo.summary import MODELS

_MEASURING = 0.2
"""Share of a job's time that is measuring, after training."""


class Display:
    """A bar for each job; with `is_shown=False`, nothing."""

    def __init__(self, jobs: Sequence[Job], epochs: int, *, is_shown: bool) -> None:
        self._console = Console(stderr=True, quiet=not is_shown)
        self._epochs = epochs
        self._open = {_name(job): job for job in jobs}
        self._bars: dict[str, TaskID] = {}
        self._progress: Progress | None = None
        if is_shown and self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description:<29}"),
                BarColumn(bar_width=28),
                TextColumn("{task.fields[state]:<18}"),
                TimeElapsedColumn(),
                console=self._console,
            )
            for name in self._open:
                self._bars[name] = self._progress.add_task(
                    name, total=1.0, state="waiting", start=False
                )

    def __enter__(self) -> Display:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)

    def look(self) -> None:
        """Read from the run folders how far the jobs are."""
        if self._progress is None:
            return
        for name, job in self._open.items():
            if not job.run.exists():
                continue
            bar = self._bars[name]
            self._progress.start_task(bar)
            epoch = max((r.metrics.get("epoch", 0.0) for r in results.read(job.run)), default=0.0)
            is_trained = epoch >= self._epochs
            state = "attacking" if is_trained else f"epoch {epoch:.0f}/{self._epochs}"
            done = (1 - _MEASURING) * epoch / self._epochs
            self._progress.update(bar, completed=done, state=state)

    def done(self, job: Job, accuracy: float) -> None:
        name = _name(job)
        del self._open[name]
        state = f"accuracy {accuracy:.1f} %"
        if self._progress is not None:
            self._progress.start_task(self._bars[name])
            self._progress.update(self._bars[name], completed=1.0, state=state)
            self._progress.stop_task(self._bars[name])
        else:
            self.say(f"{name}: {state}")


def _name(job: Job) -> str:
    return f"{MODELS[job.model]}, seed {job.seed}"
