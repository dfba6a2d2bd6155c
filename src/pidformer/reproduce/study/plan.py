"""A study as a plan: train, measure, look inside and publish every row, run by run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pidformer.errors import InputError, unknown
from pidformer.reproduce.job_kinds import suite_of
from pidformer.reproduce.jobs import Blocked, Job, Kind, Plan, find_folder, in_turn
from pidformer.reproduce.study.file import DEPTH, StudyPlan, StudyRow, load_study
from pidformer.training import load_recipe

LOOK = 512
"""Images to look into."""
_SECONDS = {"study": 30.0, "study-spsa": 18.0, "analyze": 28.0, "publish": 1.0}
"""First guesses for an H200; once a job of the kind has run, its pace (`times.estimates`)."""
_START, _EPOCH = 90.0, 1.1
"""Seconds of a training for its start, and for an epoch of 12 layers: the same guess, by length."""


def study_plan(
    out: str | Path,
    *,
    data: str | Path | None,
    only: Sequence[str] = (),
    seeds: int | None = None,
    study: StudyPlan | str | Path,
) -> Plan:
    """The jobs of the groups `only` (all, by default) of a study, seed by seed.

    `seeds` takes so many of each row's seeds. A suite that does not exist is refused here, before
    anything is trained. Published records go to OUT/results/STUDY; a run that has them there and no
    folder in OUT/runs was made elsewhere, and is not made again.
    """
    if not isinstance(study, StudyPlan):
        study = load_study(study)
    out = Path(out)
    for name in only:
        if name not in study.groups:
            raise unknown("group of the study", name, study.groups)
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds must be at least 1, got {seeds}")
    for measure in dict.fromkeys(own for row in study.rows for own in row.suites.values()):
        suite_of(vars(measure))
    place = find_folder(study.data, data) if study.data else None
    if study.data and place is None:
        where = "say where with --data DIR" if data is None else f"no {study.data[0]} in {data}"
        blocked = Blocked(part=study.name, state="no data", reason=where)
        return Plan(out=out, jobs=(), blocked=(blocked,))
    jobs: list[Job] = []
    taken: set[str] = set()
    for group in only or study.groups:
        rows = [row for row in study.rows if row.group == group]
        guess = {row.name: _training_seconds(study, row) for row in rows}
        for seed in dict.fromkeys(s for row in rows for s in row.seeds[:seeds]):
            for row in rows:
                name = f"{row.name}-seed{seed}"
                if seed in row.seeds[:seeds] and name not in taken:
                    taken.add(name)
                    if not _is_made_elsewhere(out, study, name):
                        jobs += _run_jobs(out, study, row, seed, place, guess[row.name])
    return Plan(
        out=out,
        jobs=tuple(jobs),
        timed_on="one H200 GPU (a first guess until a job of the kind has run)",
    )


def _is_made_elsewhere(out: Path, study: StudyPlan, name: str) -> bool:
    has_records = (out / "results" / study.name / f"{name}.jsonl").exists()
    return has_records and not (out / "runs" / name).exists()


def _training_seconds(study: StudyPlan, row: StudyRow) -> float:
    """A first guess, by the length of the training and the depth of the model."""
    recipe = load_recipe(study.recipe, row.overrides)
    layers = recipe.model.options.get("depth", DEPTH)
    return _START + _EPOCH * (recipe.schedule.epochs or 0) * layers / DEPTH


def _run_jobs(
    out: Path, study: StudyPlan, row: StudyRow, seed: int, data: Path | None, train_seconds: float
) -> list[Job]:
    """Train, evaluate, analyse, publish."""
    name = f"{row.name}-seed{seed}"
    shared = {"run": out / "runs" / name, "data": data, "task": "classification"}

    def job(kind: Kind, seconds: float, what: str = "", **arguments: Any) -> Job:
        parts = [kind, name, *([what] if what else [])]
        title = " ".join(parts)
        arguments = shared | arguments
        return Job(id=".".join(parts), kind=kind, title=title, arguments=arguments, seconds=seconds)

    measures = {k: measure for k, measure in row.suites.items() if measure.covers(seed)}
    looked: dict[str, Any] = {"limit": LOOK, "out": out / "analysis" / name, "draw": False}
    return in_turn(
        [
            job("train", train_seconds, recipe=study.recipe, seed=seed, overrides=row.overrides),
            *(
                job("evaluate", _SECONDS.get(suite, 30.0), Path(suite).stem, **vars(measure))
                for suite, measure in measures.items()
            ),
            job("analyze", _SECONDS["analyze"], **looked),
            job("publish", _SECONDS["publish"], to=out / "results" / study.name),
        ]
    )
