"""Which jobs a table or figure needs at each scale (parts.yaml says so), and a registered study."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pidformer.errors import InputError, check_known
from pidformer.fields import read_yaml, typed
from pidformer.reproduce.job_kinds import ROW_SUITES, suite_of
from pidformer.reproduce.jobs import Blocked, Job, Kind, Plan, find_folder, in_turn
from pidformer.reproduce.study import DEPTH, Measure, StudyPlan, StudyRow, load_study
from pidformer.training import Recipe, load_recipe

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
_GPU = "one H200 GPU (a first guess until a job of the kind has run)"
TIMED_ON = {"demo": "a 2.8 GHz CPU core", "small": _GPU, "paper": _GPU}
LOOK = 512
"""Images to look into, in a study."""


@dataclass(frozen=True, kw_only=True)
class StudyCost:
    """First guesses of what a registered run takes, in seconds of a GPU to itself."""

    start: float
    epoch: float
    """Of a training with 12 layers."""
    share: float
    """`Job.share` of a training."""
    measuring: float
    """`Job.share` of a measure."""
    measures: Mapping[str, float]

    def training(self, recipe: Recipe) -> float:
        layers = recipe.model.options.get("depth", DEPTH)
        return self.start + self.epoch * (recipe.schedule.epochs or 0) * layers / DEPTH


_COSTS = {
    name: typed(StudyCost, fields, f"study.{name}", key_of="plan key")
    for name, fields in read_yaml(Path(__file__).with_name("parts.yaml"), "plan")["study"].items()
}
_LIKE = {"classification": "tiny-imagenet-100", "segmentation": "camvid", "language": "novels"}
"""The set whose costs stand for those of one that has none."""


def study_cost(recipe: Recipe) -> StudyCost:
    return _COSTS.get(recipe.data.name, _COSTS[_LIKE[recipe.task]])


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
    check_known("scale", scale, SCALES)
    seeds = 2 if seeds is None else seeds
    check_seeds(seeds)
    for name in only:
        check_known("part", name, PARTS)
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
    first = TABLE.get(("table1", scale))
    if (lacking := _lacking(name, part.data, data)) is not None:
        return lacking
    if part.backbones and first is not None and find_folder(first.data, data) is None:
        reason = f"its backbones are trained on {first.data[0]}, which is not in {data}"
        return Blocked(part=name, state="no data", reason=reason)
    return None


def _lacking(part: str, names: Sequence[str], data: str | Path | None) -> Blocked | None:
    """The reason to block a part whose data folder is missing; None if it is there."""
    if not names or find_folder(names, data) is not None:
        return None
    reason = "say where with --data DIR" if data is None else f"no {names[0]} in {data}"
    return Blocked(part=part, state="no data", reason=reason)


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
    first, data = parts[0]
    shared = {"run": out / "runs" / name, "data": data, "task": first.task}
    more: dict[str, Any] = {"recipe": recipe, "seed": seed, "overrides": ()}
    needs: tuple[str, ...] = ()
    if recipe in first.backbones:
        backbone = f"{first.backbones[recipe].removesuffix('.yaml')}-seed{seed}"
        more["overrides"] = (f"segmentation.backbone={out / 'runs' / backbone}",)
        needs = (f"train.{backbone.replace('/', '.')}",)
    jobs = [_job("train", name, first.train_seconds, shared | more, needs=needs)]
    for part, _ in parts:
        for one in part.evaluations:
            what = one.suite if one.domain == "pixel" else f"{one.suite}, {one.domain}"
            about = {k: v for k, v in asdict(one).items() if k != "seconds"}
            place = (one.suite, one.domain)
            jobs.append(_job("evaluate", name, one.seconds, shared | about, place, what))
    limits = [part for part, _ in parts if part.analyze_limit is not None]
    if limits:
        first = limits[0]
        looked = {"limit": first.analyze_limit, "out": out / "analysis" / name, "draw": first.draw}
        jobs.append(_job("analyze", name, first.analyze_seconds, shared | looked, what="tokens"))
    return in_turn(jobs)


def _job(
    kind: Kind,
    name: str,
    seconds: float,
    arguments: Mapping[str, Any],
    place: Sequence[str] = (),
    what: str = "",
    needs: tuple[str, ...] = (),
    share: float = 1.0,
) -> Job:
    """A job of the run `name`; `place` tells it from others of its kind."""
    return Job(
        id=".".join([kind, name.replace("/", "."), *place]),
        kind=kind,
        title=f"{kind} {name}" + (f": {what}" if what else ""),
        arguments=arguments,
        needs=needs,
        seconds=seconds,
        share=share,
    )


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
        check_known("group of the study", name, study.groups)
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds must be at least 1, got {seeds}")
    task = load_recipe(study.recipe).task
    for measure in dict.fromkeys(own for row in study.rows for own in row.suites.values()):
        _check_measure(measure, task)
    _check_backbones(study, task)
    if (lacking := _lacking(study.name, study.data, data)) is not None:
        return Plan(out=out, jobs=(), blocked=(lacking,))
    place = find_folder(study.data, data)
    jobs: list[Job] = []
    past: list[Job] = []
    blocked: list[Blocked] = []
    taken: set[str] = set()
    for group in only or study.groups:
        rows = [row for row in study.rows if row.group == group]
        start = rows[0].backbone
        if start is not None and (lacking := _lacking(group, start.data, data)) is not None:
            blocked.append(lacking)
            continue
        recipes = {row.name: load_recipe(study.recipe, row.overrides) for row in rows}
        for seed in dict.fromkeys(s for row in rows for s in row.seeds[:seeds]):
            for row in rows:
                name = f"{row.name}-seed{seed}"
                if seed in row.seeds[:seeds] and name not in taken:
                    taken.add(name)
                    own = _study_jobs(out, study, row, seed, place, recipes[row.name])
                    own = own if start is None else _begun_from(out, row, seed, data, own)
                    (past if _is_made_elsewhere(out, study, name) else jobs).extend(own)
    return Plan(out=out, jobs=tuple(jobs), past=tuple(past), blocked=tuple(blocked), timed_on=_GPU)


def run_jobs(study: StudyPlan, row: StudyRow, seed: int) -> list[Job]:
    """What one run of a study takes, from its encoder's training to its publishing."""
    recipe = load_recipe(study.recipe, row.overrides)
    jobs = _study_jobs(Path(), study, row, seed, None, recipe)
    return jobs if row.backbone is None else _begun_from(Path(), row, seed, None, jobs)


def _check_measure(measure: Measure, task: str) -> None:
    """Refuse a suite that the task does not have."""
    if measure.precision != "fp32" and task != "language":
        raise InputError(f"suite {measure.suite}: precision is for language alone")
    if task == "classification":
        suite_of(vars(measure))
        return
    check_known(f"suite of {task}", measure.suite, ROW_SUITES[task])
    if measure.curve is not None or measure.domain != "pixel":
        raise InputError(f"suite {measure.suite}: curves and domains are for classification alone")


def _check_backbones(study: StudyPlan, task: str) -> None:
    """Refuse an encoder for what has none, or from what gives none."""
    for row in study.rows:
        if row.backbone is None:
            continue
        given = load_recipe(row.backbone.recipe, row.backbone.set).task
        if (task, given) != ("segmentation", "classification"):
            raise InputError(
                f"groups.{row.group}.backbone: a run of {task} cannot start from one of {given}; "
                "a run of segmentation starts from one of classification"
            )


def _begun_from(
    out: Path, row: StudyRow, seed: int, data: str | Path | None, jobs: list[Job]
) -> list[Job]:
    """A run's jobs behind the training of its backbone, whose weights its encoder starts with."""
    backbone = row.backbone
    assert backbone is not None
    name = f"{row.name}_backbone-seed{seed}"
    run, train = out / "runs" / name, jobs[0]
    place = find_folder(backbone.data, data)
    shared = {"run": run, "data": place, "task": "classification", "recipe": backbone.recipe}
    more = {"seed": seed, "overrides": backbone.set}
    recipe = load_recipe(backbone.recipe, backbone.set)
    cost = study_cost(recipe)
    first = _job("train", name, cost.training(recipe), shared | more, share=cost.share)
    overrides = (*train.arguments["overrides"], f"segmentation.backbone={run}")
    then = replace(train, arguments={**train.arguments, "overrides": overrides}, needs=(first.id,))
    return [first, then, *jobs[1:]]


def _is_made_elsewhere(out: Path, study: StudyPlan, name: str) -> bool:
    has_records = (out / "results" / study.name / f"{name}.jsonl").exists()
    return has_records and not (out / "runs" / name).exists()


def _study_jobs(
    out: Path, study: StudyPlan, row: StudyRow, seed: int, data: Path | None, recipe: Recipe
) -> list[Job]:
    """Train, analyse (classifiers), evaluate, publish: attacks, which take longest, come last."""
    name, cost = f"{row.name}-seed{seed}", study_cost(recipe)
    shared = {"run": out / "runs" / name, "data": data, "task": recipe.task}
    more = {"recipe": study.recipe, "seed": seed, "overrides": row.overrides}
    jobs = [_job("train", name, cost.training(recipe), shared | more, share=cost.share)]
    if recipe.task == "classification":
        looked = {"limit": LOOK, "out": out / "analysis" / name, "draw": False}
        seconds = cost.measures["analyze"]
        jobs.append(_job("analyze", name, seconds, shared | looked, share=cost.measuring))
    for suite, measure in row.suites.items():
        if measure.covers(seed):
            stem, about = Path(suite).stem, shared | vars(measure)
            seconds = cost.measures.get(suite, 30.0)
            jobs.append(_job("evaluate", name, seconds, about, (stem,), stem, share=cost.measuring))
    to = {"to": out / "results" / study.name}
    return in_turn([*jobs, _job("publish", name, 1.0, shared | to, share=0.0)])
