"""Jobs as plain data, and where their data sets are."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pidformer.fields import as_plain

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
    """Jobs that come before it."""
    seconds: float | None = None
    """What it is expected to take on the machine the plan names."""

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


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """A part of the plan that cannot be worked on here."""

    part: str
    state: Literal["not at this scale", "no data"]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be done, in order."""

    out: Path
    jobs: tuple[Job, ...]
    blocked: tuple[Blocked, ...] = ()
    timed_on: str = ""
    """The machine that the estimates are for."""
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
    spelled = {_letters(name) for name in names}
    if _letters(folder.resolve().name) in spelled and folder.is_dir():
        return folder
    inner = sorted(folder.iterdir()) if folder.is_dir() else []
    return next((p for p in inner if p.is_dir() and _letters(p.name) in spelled), None)


def _letters(name: str) -> str:
    return re.sub(r"[-_. ]", "", name).lower()
