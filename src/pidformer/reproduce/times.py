"""How long jobs took, and what is left: told to people, never used to decide anything."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pidformer.files import atomic_path
from pidformer.reproduce.jobs import Job, Plan


class Spent(NamedTuple):
    """Seconds of work on a job over all its tries, and the number of tries."""

    seconds: float = 0.0
    starts: int = 0


class Times:
    """A small file for each job, in OUT/jobs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()  # the heartbeat writes too
        folder.mkdir(parents=True, exist_ok=True)

    def read(self, job: Job) -> Spent:
        try:
            return Spent(**json.loads((self._folder / f"{job.id}.json").read_text()))
        except (OSError, ValueError, TypeError):
            return Spent()

    def write(self, job: Job, spent: Spent) -> None:
        with self._lock, atomic_path(self._folder / f"{job.id}.json") as temporary:
            temporary.write_text(json.dumps(spent._asdict()))


def estimates(plan: Plan, spent: Mapping[str, Spent], done: set[str]) -> dict[str, float | None]:
    """Expected seconds of each job: the mean of its like that are done, else the plan's."""
    found: dict[str, float | None] = {}
    for job in plan.jobs:
        like = [
            spent[other.id].seconds
            for other in plan.jobs
            if other.id in done and _like(other) == _like(job) and spent[other.id].seconds
        ]
        found[job.id] = sum(like) / len(like) if like else job.seconds
    return found


def _like(job: Job) -> tuple[object, ...]:
    about = job.arguments
    length = job.seconds if job.kind == "train" else None  # a longer training has a longer guess
    return job.kind, about.get("task"), about.get("suite"), about.get("domain"), length


def duration(seconds: float | None) -> str:
    """ "8 s", "3.5 min", "21 h"."""
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
