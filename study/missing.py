"""Registered runs that are still to be made, group by group, and what the plan thinks they cost."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pidformer.reproduce.jobs import duration
from pidformer.reproduce.plan import TIMED_ON, run_jobs
from study.records import Study, load_registered, registered_studies
from study.tables import table

HEADS = ["study", "group", "rows x seeds", "registered", "in", "missing", "one by one", "packed"]
_NAMED = 3
"""Missing runs that are named, at most."""
_WORDS = (
    "{made} of {registered} registered runs ([study.md](study.md)) are in. The others would take "
    "about {cost}, training and measuring one by one on {machine}; packed, as several at once that "
    "fill it, {packed} ([how](reproduce.md#finish-the-studies)). "
    "`pidformer reproduce --study study/STUDY.yaml --data DIR` makes those of a study; "
    "`python -m study missing` lists the complete groups too."
)
_LACKING = "**Not all runs are in** ([Still to run](results.md#still-to-run))"
_OPEN = "Nothing is decided before a row has all its seeds."


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A group of a study: its registered runs, and those that no record is of."""

    study: str
    group: str
    rows: int
    seeds: int
    registered: int
    missing: tuple[str, ...]
    seconds: float
    """Of what is missing, by the plan, one run after the other."""
    packed: float
    """The same with so many at once that the GPU is never idle."""

    @property
    def cells(self) -> list[str]:
        few = self.missing if len(self.missing) <= _NAMED else ()
        count = " ".join([str(len(self.missing)), *([f"({', '.join(few)})"] if few else [])])
        made, costs = self.registered - len(self.missing), ["-", "-"]
        if self.missing:
            costs = [duration(self.seconds), duration(self.packed)]
        shape = [f"{self.rows} x {self.seeds}", str(self.registered), str(made)]
        return [self.study, self.group, *shape, count, *costs]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"in": self.registered - len(self.missing)}


def progress(studies: Sequence[Study]) -> list[Progress]:
    """Every group of every registered study, the published runs of `studies` taken off."""
    made = {study.name: {run.label for run in study.runs} for study in studies}
    found = []
    for name in registered_studies():
        plan = load_registered(name)
        for group in plan.groups:
            rows = [row for row in plan.rows if row.group == group]
            runs = {f"{row.name}-seed{seed}": (row, seed) for row in rows for seed in row.seeds}
            missing = [run for run in runs if run not in made.get(name, ())]
            priced = missing if plan.recipe else ()  # what is not made by `reproduce` has no price
            left = [job for run in priced for job in run_jobs(plan, *runs[run])]
            known = Progress(
                study=name,
                group=group,
                rows=len(rows),
                seeds=max(len(row.seeds) for row in rows),
                registered=len(runs),
                missing=tuple(missing),
                seconds=sum(job.seconds or 0.0 for job in left),
                packed=sum((job.seconds or 0.0) * job.share for job in left),
            )
            found.append(known)
    return found


def lacking_text(found: Sequence[Progress], study: str) -> str:
    """Which groups of a study lack runs; "" where none does."""
    counts = [
        f"`{one.group}` has {one.registered - len(one.missing)} of {one.registered}"
        for one in found
        if one.study == study and one.missing
    ]
    return f"{_LACKING}: {', '.join(counts)}. {_OPEN}" if counts else ""


def missing_text(found: Sequence[Progress]) -> str:
    """What is in, and a table of the groups that lack runs."""
    left = [one for one in found if one.missing]
    registered = sum(one.registered for one in found)
    if not left:
        return f"All {registered} registered runs ([study.md](study.md)) are in."
    words = _WORDS.format(
        made=registered - sum(len(one.missing) for one in left),
        registered=registered,
        cost=duration(sum(one.seconds for one in left)),
        packed=duration(sum(one.packed for one in left)),
        machine=TIMED_ON["small"],
    )
    return "\n\n".join([words, table(HEADS, [one.cells for one in left], left=2)])
