"""Which jobs a table or figure needs at each scale: parts.yaml says so, and this reads it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pidformer.errors import InputError, unknown
from pidformer.fields import read_yaml, typed
from pidformer.reproduce.jobs import Blocked, Job, Kind, Plan, find_folder, in_turn
from pidformer.reproduce.study.plan import study_plan

SCALES = ("demo", "small", "paper")
MOST_SEEDS = 1000
PARTS = ("table1", "table2", "table3", "figures")


@dataclass(frozen=True)
class Evaluation:
    """A suite, or a curve over budgets, and its expected seconds per run."""

    suite: str
    seconds: float
    curve: str | None = None
    eps: str | None = None
    domain: str = "pixel"
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class PlanPart:
    """What one table or figure takes at one scale: the twins, and what is measured of each."""

    recipes: tuple[str, ...]
    data: tuple[str, ...] = ()
    """Names that the set's folder may have; none for embedded data."""
    task: str = "classification"
    train_seconds: float
    evaluations: tuple[Evaluation, ...] = ()
    analyze_limit: int | None = None
    """Images to look into; None for no analysis."""
    analyze_seconds: float = 0.0
    draw: bool = True
    """Whether the analysis draws its figures."""
    backbones: Mapping[str, str] = field(default_factory=dict)
    """Recipes of Table 1 whose runs the recipes start from."""


def _read_table() -> dict[tuple[str, str], PlanPart]:
    """The parts of parts.yaml by name and scale."""
    given = read_yaml(Path(__file__).with_name("parts.yaml"), "plan")
    return {
        (name, scale): typed(PlanPart, fields, f"{scale}.{name}", key_of="plan key")
        for scale in SCALES
        for name, fields in given[scale].items()
    }


TABLE = _read_table()
TIMED_ON = {
    "demo": "a 2.8 GHz CPU core",
    "small": "one H200 GPU (a first guess until a job of the kind has run)",
    "paper": "one H200 GPU (a first guess until a job of the kind has run)",
}


def make_plan(
    out: str | Path,
    *,
    scale: str = "demo",
    data: str | Path | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    study: str | Path | None = None,
) -> Plan:
    """The jobs of the parts `only` (all, by default) at a scale, with seeds 0 to `seeds` - 1 (2).

    With a `study` (its file), `only` names groups of its rows, and their seeds are the study's own:
    `study_plan`.
    """
    if study is not None:
        return study_plan(out, data=data, only=only, seeds=seeds, study=study)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    seeds = 2 if seeds is None else seeds
    check_seeds(seeds)
    for name in only:
        if name not in PARTS:
            raise unknown("part", name, PARTS)
    out = Path(out)
    chosen: list[tuple[PlanPart, Path | None]] = []
    blocked: list[Blocked] = []
    for name in PARTS:
        if only and name not in only:
            continue
        part = TABLE.get((name, scale))
        reason = _why_not(name, part, scale, data)
        if reason is not None:
            blocked.append(reason)
        elif part is not None:
            if part.backbones and "table1" not in (only or PARTS):
                first = TABLE["table1", scale]
                bare = replace(first, evaluations=(), recipes=tuple(part.backbones.values()))
                chosen.append((bare, find_folder(first.data, data)))
            chosen.append((part, find_folder(part.data, data)))
    jobs = plan_jobs(out, chosen, seeds)
    if jobs:
        jobs.append(_report_of_recipes(out, jobs))
    return Plan(out=out, jobs=tuple(jobs), blocked=tuple(blocked), timed_on=TIMED_ON[scale])


def check_seeds(seeds: int) -> None:
    if not 1 <= seeds <= MOST_SEEDS:
        raise InputError(f"seeds must be at least 1, and at most {MOST_SEEDS}, got {seeds}")


def _why_not(
    name: str, part: PlanPart | None, scale: str, data: str | Path | None
) -> Blocked | None:
    if part is None:
        return Blocked(part=name, state="not at this scale", reason="try --scale small")
    if part.data and find_folder(part.data, data) is None:
        place = "say where with --data DIR" if data is None else f"no {part.data[0]} in {data}"
        return Blocked(part=name, state="no data", reason=place)
    first = TABLE.get(("table1", scale))
    if part.backbones and first is not None and find_folder(first.data, data) is None:
        reason = f"its backbones are trained on {first.data[0]}, which is not in {data}"
        return Blocked(part=name, state="no data", reason=reason)
    return None


def plan_jobs(out: Path, parts: Sequence[tuple[PlanPart, Path | None]], seeds: int) -> list[Job]:
    """By run: train, then what is measured, one after the other: a run folder has one writer."""
    jobs: list[Job] = []
    recipes = dict.fromkeys(recipe for part, _ in parts for recipe in part.recipes)
    for seed in range(seeds):
        for recipe in recipes:
            own = [(part, data) for part, data in parts if recipe in part.recipes]
            jobs += _run_jobs(out, recipe, seed, own)
    return jobs


def _run_jobs(
    out: Path, recipe: str, seed: int, parts: Sequence[tuple[PlanPart, Path | None]]
) -> list[Job]:
    name = f"{recipe.removesuffix('.yaml')}-seed{seed}"
    run, slug = out / "runs" / name, name.replace("/", ".")
    first, data = parts[0]
    shared = {"run": run, "data": data, "task": first.task}
    more: dict[str, Any] = {"recipe": recipe, "seed": seed, "overrides": ()}
    needs: tuple[str, ...] = ()
    if recipe in first.backbones:
        backbone = f"{first.backbones[recipe].removesuffix('.yaml')}-seed{seed}"
        more["overrides"] = (f"segmentation.backbone={out / 'runs' / backbone}",)
        needs = (f"train.{backbone.replace('/', '.')}",)
    jobs = [
        Job(
            id=f"train.{slug}",
            kind="train",
            title=f"train {name}",
            arguments=shared | more,
            needs=needs,
            seconds=first.train_seconds,
        )
    ]

    def add(job_id: str, kind: Kind, what: str, seconds: float, **arguments: Any) -> None:
        title, arguments = f"{kind} {name}: {what}", shared | arguments
        jobs.append(Job(id=job_id, kind=kind, title=title, arguments=arguments, seconds=seconds))

    for part, _ in parts:
        for one in part.evaluations:
            what = one.suite if one.domain == "pixel" else f"{one.suite}, {one.domain}"
            arguments = {k: v for k, v in asdict(one).items() if k != "seconds"}
            job_id = f"evaluate.{slug}.{one.suite}.{one.domain}"
            add(job_id, "evaluate", what, one.seconds, **arguments)
    limits = [part for part, _ in parts if part.analyze_limit is not None]
    if limits:
        first = limits[0]
        looked = {"limit": first.analyze_limit, "out": out / "analysis" / name, "draw": first.draw}
        add(f"analyze.{slug}", "analyze", "tokens", first.analyze_seconds, **looked)
    return in_turn(jobs)


def _report_of_recipes(out: Path, jobs: Sequence[Job]) -> Job:
    """The report on these recipes' folders alone: runs of another scale in OUT are no twins."""
    trained = [Path(job.arguments["run"]) for job in jobs if job.kind == "train"]
    tasks = {str(job.arguments["task"]) for job in jobs}
    recipes = {str(job.arguments["recipe"]).split("/")[0] for job in jobs if job.kind == "train"}
    folders = tuple(dict.fromkeys(run.parent for run in trained))
    is_mixed = len(recipes) > len(tasks)
    return report_job("report", jobs, folders=folders, out=out / "report", mixed=is_mixed)


def report_job(job_id: str, jobs: Sequence[Job], **arguments: Any) -> Job:
    """The last job, after all the others."""
    needs = tuple(job.id for job in jobs)
    return Job(
        id=job_id, kind="report", title="report", arguments=arguments, needs=needs, seconds=8.0
    )
