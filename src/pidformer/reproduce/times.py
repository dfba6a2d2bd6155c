"""How long jobs took, and what is left: told to people, and what `--minutes` goes by.

Whether a job is done never depends on these numbers; whether a run is begun in the time that is
left does.
"""

import json
import threading
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pidformer.files import atomic_path
from pidformer.reproduce.jobs import Job, Plan

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
        self._lock = threading.Lock()  # the heartbeat writes too
        folder.mkdir(parents=True, exist_ok=True)

    def read(self, job: Job) -> Spent:
        return self.of(job.id)

    def of(self, job_id: str) -> Spent:
        try:
            path = self._folder / f"{job_id}.json"
            held = json.loads(path.read_text())
            return Spent(float(held["seconds"]), int(held["starts"]), path.stat().st_mtime)
        except (OSError, ValueError, TypeError, KeyError):
            return Spent()

    def write(self, job: Job, spent: Spent) -> None:
        """On a full disk, not: no job fails for it."""
        path = self._folder / f"{job.id}.json"
        with suppress(OSError), self._lock, atomic_path(path) as temporary:
            temporary.write_text(json.dumps({"seconds": spent.seconds, "starts": spent.starts}))


def estimates(plan: Plan, spent: Mapping[str, Spent], done: set[str]) -> dict[str, float | None]:
    """Expected seconds of each job: the plan's guess, by the pace of its like that were done last.

    The pace is the seconds that a job took over those of its guess, and the guess of a training
    grows with its epochs and layers: trainings of one length tell of those of another.
    """
    paces: dict[tuple[object, ...], list[tuple[float, str, float]]] = defaultdict(list)
    for job in plan.jobs:
        took = spent[job.id]
        if job.id in done and took.seconds:
            paces[_like(job)].append((took.at, job.id, took.seconds / (job.seconds or 1.0)))
    latest = {like: fmean(pace for *_, pace in sorted(of)[-LATEST:]) for like, of in paces.items()}
    return {
        job.id: (job.seconds or 1.0) * latest[_like(job)] if _like(job) in latest else job.seconds
        for job in plan.jobs
    }


def _like(job: Job) -> tuple[object, ...]:
    about = job.arguments
    return job.kind, about.get("task"), about.get("suite"), about.get("domain")


def duration(seconds: float | None) -> str:
    """ "8 s", "3.5 min", "21 h"."""
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
