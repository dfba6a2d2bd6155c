"""Jobs as plain data, where their data are, and how long they take."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from pidformer.data.benchmarks import letters_of
from pidformer.fields import as_plain
from pidformer.files import write_whole

Kind = Literal["train", "evaluate", "analyze", "publish", "report"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One piece of work; whether it is done is read from the folders it writes to."""

    id: str
    """Also the name of its claim: letters, digits, dots, dashes."""
    kind: Kind
    title: str
    arguments: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    seconds: float | None = None
    """What it is expected to take on the machine the plan names, alone there."""
    share: float = 1.0
    """The part of `seconds` that each of several at once on a GPU adds to the time of all."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "kind": self.kind,
            "title": self.title,
            "arguments": as_plain(self.arguments),
            "needs": list(self.needs),
        }


@dataclass(frozen=True, kw_only=True)
class JobState:
    """A job as the table shows it."""

    job: Job
    state: str
    spent: float
    estimate: float | None


def seconds_left(lines: Iterable[JobState]) -> float:
    """Expected seconds of work on what is not done, for one process."""
    return sum(max(0.0, (x.estimate or 0.0) - x.spent) for x in lines if x.state != "done")


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """A part of the plan that cannot be worked on here."""

    part: str
    state: Literal["not at this scale", "no data"]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    out: Path
    jobs: tuple[Job, ...]
    blocked: tuple[Blocked, ...] = ()
    timed_on: str = ""
    """The machine that the estimates are for."""
    past: tuple[Job, ...] = ()
    """Jobs of runs made elsewhere; their times, if OUT/jobs has them, tell of the others."""
    at_once: int = 1
    """How many processes share a GPU."""
    by_id: Mapping[str, Job] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {job.id: job for job in self.jobs})


def in_turn(jobs: Iterable[Job]) -> list[Job]:
    """Each also needs the one before it: a run folder has one writer."""
    found: list[Job] = []
    for job in jobs:
        found.append(replace(job, needs=(*job.needs, *(before.id for before in found[-1:]))))
    return found


def find_folder(names: Sequence[str], data: str | Path | None) -> Path | None:
    """A folder of one of these names in `data`, or `data` itself, whatever its case and dashes."""
    if data is None:
        return None
    folder = Path(data)
    spelled = {letters_of(name) for name in names}
    own = {letters_of(name) for name in (folder.name, folder.resolve().name)}  # it may be a link
    if own & spelled and folder.is_dir():
        return folder
    inner = sorted(folder.iterdir()) if folder.is_dir() else []
    return next((p for p in inner if p.is_dir() and letters_of(p.name) in spelled), None)


LATEST = 5
"""How many jobs an estimate looks back: processes that share a GPU come and go."""


class Spent(NamedTuple):
    """Seconds of work on a job over all its tries, and the number of tries."""

    seconds: float = 0.0
    starts: int = 0
    at: float = 0.0
    """When that was written, by the clock of the disk: all processes see the same order."""


class Times:
    """A small file for each job, in OUT/jobs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, job_id: str) -> Spent:
        try:
            path = self._folder / f"{job_id}.json"
            held = json.loads(path.read_text())
            return Spent(float(held["seconds"]), int(held["starts"]), path.stat().st_mtime)
        except (OSError, ValueError, TypeError, KeyError):
            return Spent()

    def write(self, job: Job, spent: Spent) -> None:
        """A full disk is ignored: no job fails for its times."""
        path = self._folder / f"{job.id}.json"
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps({"seconds": spent.seconds, "starts": spent.starts}))


def estimates(plan: Plan, spent: Mapping[str, Spent], done: set[str]) -> dict[str, float | None]:
    """Expected seconds of each job: the plan's guess, by the pace of its like that were done last.

    The pace is the seconds that a job took over those of its guess, and the guess of a training
    grows with its epochs and layers: trainings of one length tell of those of another. Until one
    is done, `at_once` processes are expected to take max(1, at_once * share) times as long.
    """
    paces: dict[tuple[object, ...], list[tuple[float, str, float]]] = defaultdict(list)
    finished = done | {job.id for job in plan.past}
    for job in (*plan.past, *plan.jobs):
        took = spent.get(job.id, Spent())
        if job.id in finished and took.seconds and took.starts == 1:  # a killed try tells no time
            paces[_like(job)].append((took.at, job.id, took.seconds / (job.seconds or 1.0)))
    latest = {like: fmean(pace for *_, pace in sorted(of)[-LATEST:]) for like, of in paces.items()}
    found: dict[str, float | None] = {}
    for job in plan.jobs:
        pace = latest.get(_like(job))
        if pace is None and job.seconds is not None:
            pace = max(1.0, plan.at_once * job.share)
        found[job.id] = None if pace is None else pace * (job.seconds or 1.0)
    return found


def _like(job: Job) -> tuple[object, ...]:
    about = job.arguments
    return job.kind, about.get("task"), about.get("suite"), about.get("domain")


def duration(seconds: float | None) -> str:
    """ "8 s", "3.5 min", "21 h"."""
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.1f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 9.95 else f"{hours:,.0f} h"
