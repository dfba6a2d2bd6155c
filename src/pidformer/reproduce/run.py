"""Work through a plan: take what is ready, leave what others hold, end when all is done."""

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pidformer.devices import as_device
from pidformer.errors import InputError
from pidformer.files import out_folder
from pidformer.interrupts import Interrupted, forget
from pidformer.reproduce.claims import BEAT, STALE, JobClaims
from pidformer.reproduce.display import PlanDisplay
from pidformer.reproduce.job_kinds import JobSetting, do, is_done
from pidformer.reproduce.jobs import Job, JobState, Plan, Spent, Times, estimates, seconds_left
from pidformer.reproduce.plan import make_plan
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
        """Expected seconds of work that is left, for one process."""
        return seconds_left(self.lines)

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


def reproduce(
    out: str | Path = "reproduction",
    *,
    scale: str = "demo",
    data: str | Path | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    study: str | Path | None = None,
    minutes: float | None = None,
    jobs: int | None = 1,
    device: str = "auto",
    dry_run: bool = False,
    is_shown: bool = True,
) -> Outcome:
    """Train, evaluate, analyse and report what the paper's tables and figures need.

    Run again, also after a kill, it goes on where it stopped; several processes, on one machine or
    on several that share a disk, may work on the same `out`. `jobs` starts that many here (None:
    see `check_jobs`); they are started afresh, so a script that asks for several needs the usual
    `if __name__ == "__main__":`. `dry_run` only shows the plan. With `minutes`, no run is begun
    that would not end in time by its estimate; what was begun is ended.
    """
    plan = make_plan(out, scale=scale, data=data, seeds=seeds, only=only, study=study)
    as_device(device)
    if plan.out.exists() and not plan.out.is_dir():
        raise InputError(f"{out} is a file; --out names a folder")
    if minutes is not None and not minutes > 0:  # NaN too
        raise InputError(f"minutes must be positive, got {minutes}")
    jobs = check_jobs(jobs, plan, device)
    if dry_run or not (plan.jobs or plan.blocked):  # the latter: all was made elsewhere
        return look(plan)
    if not plan.jobs:
        reasons = "; ".join(f"{b.part}: {b.state}, {b.reason}" for b in plan.blocked)
        raise InputError(f"nothing of this plan can be made here ({reasons})")
    setting = JobSetting(device=device)
    return run_plan(plan, setting, jobs=jobs, is_shown=is_shown, minutes=minutes)


def check_jobs(jobs: int | None, plan: Plan, device: str) -> int:
    """How many processes to start: as many as asked for, but no more than the plan has runs.

    By default one for each core; on a GPU, whose memory they would share, one.
    """
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
    beat: float = BEAT,
    stale: float = STALE,
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
        pace = {"beat": beat, "stale": stale, "poll": poll, "minutes": minutes}
        work = partial(run_plan, plan, setting, jobs=1, is_shown=False, **pace)  # type: ignore[arg-type]
        return _watch(plan, work, jobs, is_shown=is_shown)
    try:
        claims = JobClaims(plan.out / "claims", beat=beat, stale=stale)
        times = Times(plan.out / "jobs")
    except OSError as error:
        raise InputError(
            f"cannot write to {plan.out} ({error.strerror}); choose another --out"
        ) from None
    done: set[str] = set()
    broken: dict[str, str] = {}
    with PlanDisplay(plan, is_shown=is_shown) as display:
        while True:
            found = _look(plan, done, broken, claims, times)
            display.update(found.lines)
            ready = [job for job in plan.jobs if _is_ready(job, done, found.failed)]
            if minutes is not None:
                left = 60 * minutes - (time.monotonic() - begun)
                ready = [job for job in ready if _fits(job, found.lines, left)]
            if not ready:
                break
            attempts = (
                _attempt(plan, job, setting, claims, times, done, broken, display) for job in ready
            )
            if not any(attempts):  # the first success ends the round
                time.sleep(poll)
        for job_id in done:
            claims.tidy(job_id)
        found = _look(plan, done, broken, claims, times)
        display.update(found.lines)
    return found


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
            found = look(plan, done, broken)
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


def look(plan: Plan, done: Iterable[str] = (), broken: Mapping[str, str] | None = None) -> Outcome:
    """The plan as it stands, without working on it or writing anything.

    `done` and `broken`: what is known already.
    """
    places = {name: plan.out / name for name in ("claims", "jobs")}
    claims = JobClaims(places["claims"]) if places["claims"].is_dir() else None
    times = Times(places["jobs"]) if places["jobs"].is_dir() else None
    return _look(plan, {*done}, dict(broken or {}), claims, times)


def _look(
    plan: Plan,
    done: set[str],
    broken: dict[str, str],
    claims: JobClaims | None,
    times: Times | None,
) -> Outcome:
    """Adds what is done by now, here or elsewhere, and what cannot be read: a damaged file, say."""
    for job in plan.jobs:
        if job.id in done:
            continue
        try:
            if is_done(job):
                done.add(job.id)
                broken.pop(job.id, None)
        except InputError as error:
            broken.setdefault(job.id, str(error))
    failed = _failed(plan, done, broken)
    spent = {job.id: times.read(job) if times else Spent() for job in plan.jobs}
    expected = estimates(plan, spent, done)
    lines = (
        JobState(
            job=job,
            state=_state(job, done, failed, claims),
            spent=spent[job.id].seconds,
            estimate=expected[job.id],
        )
        for job in plan.jobs
    )
    return Outcome(plan=plan, lines=tuple(lines), failed=failed)


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
    """Whether what a run still takes would end in `left` seconds; what is trained goes on."""
    if job.kind != "train":
        return True
    run = job.arguments["run"]
    own = [line for line in lines if line.job.arguments.get("run") == run]
    return seconds_left(own) <= left


def _attempt(
    plan: Plan,
    job: Job,
    setting: JobSetting,
    claims: JobClaims,
    times: Times,
    done: set[str],
    broken: dict[str, str],
    display: PlanDisplay,
) -> bool:
    """Do a job unless another holds it; whether there is news."""
    before, begun = times.read(job), time.perf_counter()

    def spent() -> Spent:
        return Spent(before.seconds + time.perf_counter() - begun, before.starts + 1)

    claim = claims.take(job.id, on_beat=lambda: times.write(job, spent()))
    if claim is None:
        return False
    with claim:
        if is_done(job):  # by another process, between the look and the claim
            done.add(job.id)
            return True
        times.write(job, spent())
        display.begin(job)
        try:
            _story(plan, job).unlink(missing_ok=True)  # of a try before
            do(job, setting)
            done.add(job.id)
        except (KeyboardInterrupt, Interrupted):
            if not claim.is_lost:
                raise
            forget()
            return True  # another process has it now
        except InputError as error:
            broken[job.id] = str(error)
        except Exception as error:  # disk, memory, LAPACK, a defect: of this job alone
            broken[job.id] = _told(plan, job, error)
        finally:
            times.write(job, spent())
        display.end(job, time.perf_counter() - begun, broken.get(job.id))
    return True


def _story(plan: Plan, job: Job) -> Path:
    return plan.out / "jobs" / f"{job.id}.txt"


def _told(plan: Plan, job: Job, error: Exception) -> str:
    """One line, and the whole story in OUT/jobs."""
    path = _story(plan, job)
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    try:
        path.write_text("".join(traceback.format_exception(error)))
    except OSError:
        return line
    return f"{line} ({path})"


def _state(job: Job, done: set[str], failed: dict[str, str], claims: JobClaims | None) -> str:
    if job.id in done:
        return "done"
    if job.id in failed:
        return "failed"
    holder = claims.holder(job.id) if claims is not None else None
    return f"running ({holder.get('host')}, {holder.get('pid')})" if holder else "waiting"
