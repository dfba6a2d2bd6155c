"""What a person sees of a plan: a table that is kept up to date, or a line for each job."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from pidformer.reproduce.jobs import Job, Plan
from pidformer.reproduce.times import duration

if TYPE_CHECKING:
    from pidformer.reproduce.run import Line

_STYLES = {"done": "green", "running": "bold", "failed": "red"}


class Display:
    """With `is_shown=False`, nothing."""

    def __init__(self, plan: Plan, *, is_shown: bool) -> None:
        self._plan = plan
        self._console = Console(stderr=True, quiet=not is_shown)
        self._live = (
            Live(console=self._console, refresh_per_second=2)
            if is_shown and self._console.is_terminal
            else None
        )
        self._lock = threading.Lock()
        self._count = 0

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, lines: Sequence[Line]) -> None:
        self._count = sum(line.state == "done" for line in lines)
        self._lines = lines
        if self._live is not None:
            self._live.update(plan_table(self._plan, lines, self._console.height))

    def begin(self, job: Job) -> None:
        if self._live is not None:
            from dataclasses import replace

            lines = [
                replace(line, state="running (here)") if line.job.id == job.id else line
                for line in self._lines
            ]
            self._live.update(plan_table(self._plan, lines, self._console.height))

    def end(self, job: Job, seconds: float, failure: str | None) -> None:
        self._count += 1
        if self._live is None:
            place = f"[{self._count}/{len(self._plan.jobs)}]"
            how = f"failed: {failure}" if failure else duration(seconds)
            self._console.print(f"{place} {job.title}: {how}", highlight=False, markup=False)


def plan_table(plan: Plan, lines: Sequence[Line], height: int | None = None) -> Table:
    """Jobs with their state, time so far and estimate.

    Where `height` lines are too few for all, those that are done are left out, then the last.
    """
    left = sum(max(0.0, (x.estimate or 0.0) - x.spent) for x in lines if x.state != "done")
    done = sum(line.state == "done" for line in lines)
    caption = f"{done} of {len(lines)} jobs done"
    if plan.timed_on and done < len(lines):
        caption += f"; about {duration(left)} of work left, expected on {plan.timed_on}"
    table = Table(box=SIMPLE_HEAD, caption=caption, caption_justify="left", pad_edge=False)
    table.add_column("job")
    table.add_column("state")
    table.add_column("time", justify="right")
    table.add_column("estimate", justify="right")
    room = len(lines) if height is None else max(1, height - 6 - len(plan.blocked))
    if len(lines) > room:
        lines = [line for line in lines if line.state != "done"][:room]
    for line in lines:
        style = _STYLES.get(line.state.split(" ")[0])
        spent = duration(line.spent) if line.spent else ""
        cells = (escape(line.job.title), escape(line.state), spent, duration(line.estimate))
        table.add_row(*cells, style=style)
    for part in plan.blocked:
        reason = escape(f"{part.state}: {part.reason}")
        table.add_row(escape(part.part), reason, "", "", style="yellow")
    return table
