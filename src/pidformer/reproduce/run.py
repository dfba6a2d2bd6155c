"""Work through a plan: take what is ready, leave what others hold, end when all is done."""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pidformer.devices import as_device
from pidformer.errors import InputError
from pidformer.files import out_folder, sweep
from pidformer.interrupts import Interrupted
from pidformer.reproduce.claims import claimed, holder
from pidformer.reproduce.display import PlanDisplay
from pidformer.reproduce.job_kinds import JobSetting, do, is_done
from pidformer.reproduce.jobs import Job, JobState, Plan, Spent, Times, estimates, seconds_left
from pidformer.reproduce.workers import in_processes, usable_cores

POLL = 1.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The plan as it stands."""

    plan: Plan
    lines: tuple[JobState, ...]
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Expected seconds of work that is left, for one process or those that share a GPU."""
        return seconds_left(self.lines) / self.plan.at_once

    @property
    def spent(self) -> float:
        return sum(line.spent for line in self.lines)

    @property
    def report(self) -> Path:
        return self.plan.out / "report" / "report.html"

    def to_dict(self) -> dict[str, Any]:
        return {
            "out": str(self.plan.out),
            "report": str(self.report) if self.report.exists() else None,
            "timed_on": self.plan.timed_on,
            "seconds_spent": round(self.spent, 1),
            "seconds_left": round(self.left, 1),
            "jobs": [
                line.job.to_dict()
                | {"state": line.state, "seconds": line.spent, "estimate": line.estimate}
                for line in self.lines
            ],
            "blocked": [vars(part) for part in self.plan.blocked],
            "failed": self.failed,
        }


def check_jobs(jobs: int | None, plan: Plan, device: str) -> int:
    """How many processes to start: `jobs`, or one per core (one on a GPU); at most one per run."""
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs must be at least 1, got {jobs}")
    if jobs is None:
        jobs = usable_cores() if as_device(device).type == "cpu" else 1
    runs = {str(job.arguments["run"]) for job in plan.jobs if "run" in job.arguments}
    return min(jobs, max(1, len(runs)))


def run_plan(
    plan: Plan,
    setting: JobSetting | None = None,
    *,
    jobs: int = 1,
    is_shown: bool = True,
    poll: float = POLL,
    minutes: float | None = None,
) -> Outcome:
    """Work on the plan until every job is done, here or elsewhere, or cannot be (in time).

    A job that fails takes those that need it along, and no others. With `jobs` above 1, that many
    processes are started to work on it, and this one looks on.
    """
    begun = time.monotonic()
    setting = setting or JobSetting()
    if jobs > 1:
        work = partial(run_plan, plan, setting, is_shown=False, poll=poll, minutes=minutes)
        return _watch(plan, work, jobs, is_shown=is_shown)
    make_folders(plan)
    done: set[str] = set()
    broken: dict[str, str] = {}
    with PlanDisplay(plan, is_shown=is_shown) as display:
        while True:
            found = look(plan, done, broken)
            display.update(found.lines)
            ready = ready_jobs(found, done, minutes, begun)
            if not ready:
                break
            for job in ready:
                if (tried := attempt(plan, job, setting, display.begin)) is not None:
                    note(tried, done, broken, display)
                    break  # the first ends the round
            else:
                time.sleep(poll)
        found = look(plan, done, broken)
        display.update(found.lines)
    return found


def make_folders(plan: Plan) -> None:
    """Make the folders of claims and times, cleared of what killed processes left there."""
    for name in ("claims", "jobs"):
        sweep(out_folder(plan.out / name))
    for path in (plan.out / "claims").glob("*.lock"):
        holder(path.parent, path.stem)


def ready_jobs(found: Outcome, done: set[str], minutes: float | None, begun: float) -> list[Job]:
    """What can be begun now, and would end in time."""
    ready = [job for job in found.plan.jobs if _is_ready(job, done, found.failed)]
    if minutes is None:
        return ready
    left = 60 * minutes - (time.monotonic() - begun)
    return [job for job in ready if _fits(job, found.lines, left)]


def _watch(plan: Plan, work: Callable[[], Outcome], jobs: int, *, is_shown: bool) -> Outcome:
    """Show the plan while `jobs` processes work on it."""
    out_folder(plan.out)
    done = _done(look(plan))
    broken: dict[str, str] = {}
    answered = 0
    with PlanDisplay(plan, is_shown=is_shown) as display:
        for ended in in_processes(work, jobs):
            if ended is not None:
                answered += 1
                broken |= ended.failed
            found = look(plan, {*done}, dict(broken))
            for line in found.lines:
                if line.job.id in _done(found) - done:
                    display.end(line.job, line.spent, None)
            done = _done(found)
            display.update(found.lines)
    found = look(plan, done, broken)
    if not answered and len(_done(found)) < len(found.lines):
        raise InputError(
            "all processes ended early (out of memory?); run the same command to go on"
        )
    return found


def _done(found: Outcome) -> set[str]:
    return {line.job.id for line in found.lines if line.state == "done"}


def look(plan: Plan, done: set[str] | None = None, broken: dict[str, str] | None = None) -> Outcome:
    """The plan as it stands, without working on it or writing anything.

    `done` and `broken` are what is known already; added is what is done by now, here or elsewhere,
    and what cannot be read: a damaged file, say. A job is not done while a process still holds it:
    its time is written last.
    """
    done, broken = set() if done is None else done, {} if broken is None else broken
    times = Times(plan.out / "jobs")
    for job in plan.jobs:
        if job.id in done:
            continue
        try:
            if is_done(job) and holder(plan.out / "claims", job.id) is None:
                done.add(job.id)
                broken.pop(job.id, None)
        except InputError as error:
            broken.setdefault(job.id, str(error))
    failed = _failed(plan, done, broken)
    spent = {job.id: times.of(job.id) for job in plan.past}
    spent |= {job.id: _spent(times, job) for job in plan.jobs}
    expected = estimates(plan, spent, done)
    lines = (
        JobState(
            job=job,
            state=_state(plan, job, done, failed),
            spent=spent[job.id].seconds,
            estimate=expected[job.id],
        )
        for job in plan.jobs
    )
    return Outcome(plan=plan, lines=tuple(lines), failed=failed)


def _spent(times: Times, job: Job) -> Spent:
    """Nothing where the run's folder is not here: what was begun elsewhere begins anew."""
    run = job.arguments.get("run")
    return times.of(job.id) if run is None or Path(run).exists() else Spent()


def _failed(plan: Plan, done: set[str], broken: Mapping[str, str]) -> dict[str, str]:
    """What broke, and what cannot be done without it; a report is made all the same."""
    found = {job_id: reason for job_id, reason in broken.items() if job_id not in done}
    causes = {job_id: job_id for job_id in found}
    for job in plan.jobs:  # in order: what is needed comes first
        cause = next((causes[need] for need in job.needs if need in causes), None)
        if cause is not None and job.kind != "report" and job.id not in {*done, *found}:
            found[job.id], causes[job.id] = f"needs {cause}", cause
    return found


def _is_ready(job: Job, done: set[str], failed: dict[str, str]) -> bool:
    """What comes before it is done; a report is made of what there is."""
    if job.id in done or job.id in failed:
        return False
    if job.kind == "report":
        return all(need in done or need in failed for need in job.needs)
    return all(need in done for need in job.needs)


def _fits(job: Job, lines: Sequence[JobState], left: float) -> bool:
    """Whether a training and all that needs it would end in `left` seconds; other jobs fit."""
    if job.kind != "train":
        return True
    after = {job.id}
    for line in lines:  # in order: what is needed comes first
        if line.job.kind != "report" and not after.isdisjoint(line.job.needs):
            after.add(line.job.id)
    return seconds_left(line for line in lines if line.job.id in after) <= left


class Tried(NamedTuple):
    """How a try at a job ended."""

    job: Job
    seconds: float
    failure: str | None


def attempt(
    plan: Plan, job: Job, setting: JobSetting, begin: Callable[[Job], None] = lambda job: None
) -> Tried | None:
    """Do a job; None where another process has it."""
    times, begun = Times(plan.out / "jobs"), time.perf_counter()
    with claimed(plan.out / "claims", job.id) as is_ours:
        if not is_ours:
            return None
        before, failure = _spent(times, job), None
        if is_done(job):  # by another process, between the look and the claim
            return Tried(job, before.seconds, None)
        times.write(job, Spent(before.seconds, before.starts + 1))
        begin(job)
        try:
            _story(plan, job).unlink(missing_ok=True)  # of a try before
            do(job, setting)
        except Interrupted:
            raise
        except InputError as error:
            failure = str(error)
        except Exception as error:  # disk, memory, LAPACK, a defect: of this job alone
            failure = _told(plan, job, error)
        finally:
            seconds = time.perf_counter() - begun
            times.write(job, Spent(before.seconds + seconds, before.starts + 1))
    return Tried(job, seconds, failure)


def note(tried: Tried, done: set[str], broken: dict[str, str], display: PlanDisplay) -> None:
    """Keep how a try ended, and show it."""
    if tried.failure is None:
        done.add(tried.job.id)
    else:
        broken[tried.job.id] = tried.failure
    display.end(tried.job, tried.seconds, tried.failure)


def _story(plan: Plan, job: Job) -> Path:
    return plan.out / "jobs" / f"{job.id}.txt"


def _told(plan: Plan, job: Job, error: Exception) -> str:
    """One line, and the whole story in OUT/jobs."""
    path = _story(plan, job)
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    try:
        story = "".join(traceback.format_exception(error))
        path.write_text(story, encoding="utf-8", errors="backslashreplace")
    except OSError:
        return line
    return f"{line} ({path})"


def _state(plan: Plan, job: Job, done: set[str], failed: dict[str, str]) -> str:
    if job.id in done:
        return "done"
    if job.id in failed:
        return "failed"
    where = holder(plan.out / "claims", job.id)
    return f"running ({where})" if where is not None else "waiting"
