"""What a person sees of a plan: a table that is kept up to date, or a line for each job."""

from collections.abc import Sequence
from dataclasses import replace

from rich.markup import escape
from rich.table import Table

from pidformer.display import Display, plain_table
from pidformer.reproduce.jobs import Job, JobState, Plan, duration, seconds_left
from pidformer.reproduce.rehearsal import Rehearsal, Rehearsed

_STYLES = {"done": "green", "running": "bold", "failed": "red"}


class PlanDisplay(Display):
    """The plan's table on a terminal, a line for each job elsewhere."""

    def __init__(self, plan: Plan, *, is_shown: bool) -> None:
        super().__init__(is_shown=is_shown, stays=True)
        self._plan = plan
        self._lines: Sequence[JobState] = ()
        self._count = 0

    def update(self, lines: Sequence[JobState]) -> None:
        self._count = sum(line.state in ("done", "failed") for line in lines)
        self._lines = lines
        self._draw(lines)

    def begin(self, job: Job) -> None:
        self._draw(
            [
                replace(line, state="running (here)") if line.job.id == job.id else line
                for line in self._lines
            ]
        )

    def end(self, job: Job, seconds: float, failure: str | None) -> None:
        self._count += 1
        if not self.is_live:
            place = f"[{self._count}/{len(self._plan.jobs)}]"
            how = f"failed: {failure}" if failure else duration(seconds)
            self.say(f"{place} {job.title}: {how}")

    def _draw(self, lines: Sequence[JobState]) -> None:
        if self.is_live:
            self.show(plan_table(self._plan, lines, self.height))


def plan_table(plan: Plan, lines: Sequence[JobState], height: int | None = None) -> Table:
    """Jobs with state, time so far and estimate; if `height` is small, done ones are left out."""
    done = sum(line.state == "done" for line in lines)
    caption = f"{done} of {len(lines)} jobs done"
    if plan.timed_on and done < len(lines):
        left = duration(seconds_left(lines) / plan.at_once)
        caption += f"; about {left} of work left, expected on {plan.timed_on}"
    table = plain_table("job", "state", numbers=("time", "estimate"), caption=caption)
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


def rehearsal_table(found: Rehearsal) -> Table:
    """Kinds of jobs with speed, memory, time, and what would fail."""
    name, *numbers = REHEARSAL_HEADS
    table = plain_table(name, numbers=numbers, caption=rehearsal_sum(found))
    for kind in found.kinds:
        style = None if kind.failure is None else "red"
        table.add_row(*map(escape, rehearsal_cells(kind)), style=style)
        for line in kind.missing:
            table.add_row(escape(f"  not there: {line}"), style="yellow")
    return table


REHEARSAL_HEADS = ("kind of job", "jobs", "speed", "loading", "memory", "each", "all")


def rehearsal_cells(kind: Rehearsed) -> list[str]:
    name = kind.title.replace("-seed0", "")
    if kind.failure is not None:
        return [name, str(kind.count), f"fails: {kind.failure}"]
    memory = _bytes(kind.memory) if kind.memory else ""
    each, every = duration(kind.seconds), duration((kind.seconds or 0.0) * kind.count)
    return [name, str(kind.count), kind.speed, kind.loading, memory, each, every]


def rehearsal_sum(found: Rehearsal) -> str:
    """All of it on one machine and on eight."""
    where = found.device + (", made-up data" if found.is_made_up else "")
    eight = duration(3600 * max(found.hours / 8, found.longest))
    return (
        f"{duration(3600 * found.hours)} of {where} ({eight} or more with eight such), "
        f"{_bytes(found.disk)} of disk"
    )


def _bytes(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"
