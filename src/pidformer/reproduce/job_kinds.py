"""How a job is done, and how its folders tell that it has been."""

import shlex
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from pidformer import results
from pidformer.analysis import token_trajectory
from pidformer.data import open_images, sample_images
from pidformer.data.text.files import SPLITS, find_text, text_blocks
from pidformer.devices import as_device
from pidformer.evaluation.analysis import SPECTRUM_LIMIT, analyze
from pidformer.evaluation.images import remaining, run_suite
from pidformer.evaluation.setup import Setup
from pidformer.evaluation.suite import Suite, curve_suite, load_suite, read_budgets
from pidformer.evaluation.tasks import evaluate_other
from pidformer.files import out_folder
from pidformer.report.analysis_figures import analysis_figures
from pidformer.report.demo.models import ATTACKED, MODELS, SHOWN
from pidformer.report.demo.page import Answers, digits_view, write_demo
from pidformer.report.publish import publish
from pidformer.report.write import is_current, write_report
from pidformer.reproduce.jobs import Job, Plan, Times
from pidformer.robustness import PGD
from pidformer.runs.model import load
from pidformer.runs.open import Subject, open_subject, outline, run_fingerprint
from pidformer.training import Recipe, load_recipe
from pidformer.training.run import check_folder, train

SAMPLE_SEED = 0
"""Seed of the images sampled for analysis; the same for every run."""
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class JobSetting:
    """What all jobs of a process share."""

    device: str = "auto"
    is_shown: bool = False
    overrides: tuple[str, ...] = ()
    """Applied to every recipe; not part of the plan."""


def do(job: Job, setting: JobSetting) -> None:
    """Work on a job until it is done, resuming an earlier try."""
    with warnings.catch_warnings():
        # advice for models that others built; a run carries its own normalisation
        warnings.filterwarnings("ignore", "clean accuracy .* is that of chance")
        _KINDS[job.kind][0](job, setting)


def is_done(job: Job) -> bool:
    """Whether the job's folders hold all that it makes."""
    return _KINDS[job.kind][1](job)


def check_recipes(plan: Plan, overrides: Sequence[str] = ()) -> None:
    """Refuse what other recipes trained; of runs that are not finished, training does so."""
    for job in plan.jobs:
        if job.kind == "train" and is_done(job):
            check_folder(Path(job.arguments["run"]), _recipe(job, overrides))


def check_texts(plan: Plan) -> None:
    """Refuse a text that could not be measured, before anything is trained for it."""
    wanted = {
        (str(about["data"]), about["suite"] if about["suite"] in SPLITS else "test")
        for job in plan.jobs
        if job.kind == "evaluate" and (about := job.arguments)["task"] == "language"
    }
    for data, split in sorted(wanted):
        deque(text_blocks(find_text(data, split)), maxlen=0)  # to the end: damage may be there


def _recipe(job: Job, overrides: Sequence[str]) -> Recipe:
    about = job.arguments
    own = [*overrides, *about.get("overrides", ()), f"seed={about['seed']}"]
    return load_recipe(about["recipe"], own)


def _train(job: Job, setting: JobSetting) -> None:
    run, data = job.arguments["run"], job.arguments["data"]
    recipe = _recipe(job, setting.overrides)
    train(recipe, run, data=data, device=setting.device, is_shown=setting.is_shown)


def _is_evaluated(job: Job) -> bool:
    run = Path(job.arguments["run"])
    if not (run / WEIGHTS).exists() or not (run / results.FILE_NAME).exists():
        return False
    records = (run / results.FILE_NAME).stat()
    stamp = (repr(job), _written(run), records.st_mtime_ns, records.st_size)
    if _SEEN.get(job.id, ())[:1] != (stamp,):  # the weights or the records have changed
        is_classifier = job.arguments["task"] == "classification"
        is_measured = _is_classifier_evaluated if is_classifier else _is_row_evaluated
        _SEEN[job.id] = (stamp, is_measured(job))
    return _SEEN[job.id][1]


_SEEN: dict[str, tuple[Any, bool]] = {}
"""For each job, the state of its files and whether it was done."""


def _is_classifier_evaluated(job: Job) -> bool:
    names = {r.settings.get("row") for r in results.read(job.arguments["run"])}
    suite = suite_of(job.arguments)
    wanted = {row.name for row in suite.rows} - {"clean"} or {"clean"}
    if names.isdisjoint(wanted):
        return False  # not begun: no need to open the model
    run = Path(job.arguments["run"])
    return not remaining(setup_of(job, _outline(run, _written(run)), "cpu"), suite)


def _evaluate(job: Job, setting: JobSetting) -> None:
    """A classifier's suite; else a view of the scenes, a split of the text, or "robustness"."""
    about = job.arguments
    if about["task"] == "classification":
        setup = setup_of(job, open_subject(about["run"]), setting.device)
        run_suite(setup, suite_of(about), command=_command(job), is_shown=setting.is_shown)
        return
    options = {"views": "single", "protocol": "sliding", "split": "test", "seed": 0, "ema": False}
    options["precision"] = about.get("precision", "fp32")
    if about["suite"] != ROBUSTNESS:
        options[_OPTIONS[about["task"]]] = about["suite"]
    evaluate_other(
        about["task"],
        [str(about["run"])],
        ROBUSTNESS if about["suite"] == ROBUSTNESS else "clean",
        about["data"],
        limit=about.get("limit"),
        gains=None,
        command=_command(job),
        device=setting.device,
        is_shown=setting.is_shown,
        **options,
    )


ROBUSTNESS = "robustness"
ROW_SUITES = {
    "segmentation": ("single", "multi", ROBUSTNESS),
    "language": ("valid", "test", ROBUSTNESS),
}
"""What measures a run that is no classifier."""
_OPTIONS = {"segmentation": "views", "language": "split"}
"""The evaluation setting that a suite sets."""
LAST_ROWS = {"segmentation": "pgd", "language": "strided/test/window/1024/sliding"}
"""The rows with which "robustness" ends."""


def _is_row_evaluated(job: Job) -> bool:
    """A record of these views (or this split, by the paper's protocol) and the present weights."""
    about, run = job.arguments, Path(job.arguments["run"])
    suite, option = about["suite"], _OPTIONS[about["task"]]
    measured = [r.measurement for r in results.read(run) if r.kind == about["task"]]
    found = [m for m in measured if m.limit == about.get("limit")]
    if about["task"] == "language":
        found = [m for m in found if m.precision == about.get("precision", "fp32")]
    if suite == ROBUSTNESS:
        found = [m for m in found if m.row == LAST_ROWS[about["task"]]]
    else:
        rows = ("clean", f"sliding/{suite}")
        found = [m for m in found if getattr(m, option) == suite and m.row in rows]
    return bool(found) and run_fingerprint(run) in {m.weights for m in found}


def setup_of(job: Job, subject: Subject, device: str) -> Setup:
    about = job.arguments
    location = about["data"] or subject.data or "digits"
    return Setup(
        subject=subject,
        location=location,
        device=as_device(device),
        domain=about.get("domain", "pixel"),
        allow_missing=True,
        limit=about.get("limit"),
    )


def suite_of(about: Mapping[str, Any]) -> Suite:
    """The rows that an evaluation measures: a suite's, or a curve's."""
    if about.get("curve"):
        return curve_suite(about["curve"].split(","), read_budgets(about["eps"]))
    return load_suite(about["suite"])


def _command(job: Job) -> str:
    """What a person would type for this job alone."""
    about = job.arguments
    words = ["pidformer", job.kind, str(about["run"])]
    if job.kind == "analyze":
        words += ["--limit", str(about["limit"]), "--out", str(about["out"])]
    elif about.get("curve"):
        words += ["--curve", about["curve"], "--eps", about["eps"]]
    elif about["task"] != "classification" and about["suite"] != ROBUSTNESS:
        words += [f"--{_OPTIONS[about['task']]}", about["suite"]]
    else:
        words += ["--suite", str(about["suite"])]
        words += ["--split", "test"] if about["task"] == "language" else []
    if job.kind == "evaluate" and about.get("limit") is not None:
        words += ["--limit", str(about["limit"])]
    if about.get("domain", "pixel") != "pixel":
        words += ["--domain", about["domain"]]
    if about.get("precision", "fp32") != "fp32":
        words += ["--precision", about["precision"]]
    if about["data"] is not None:
        words += ["--data", str(about["data"])]
    return shlex.join(words)


def _analyze(job: Job, setting: JobSetting) -> None:
    about = job.arguments
    is_drawn = about.get("draw", True)
    found = analyze(
        [about["run"]],
        data=about["data"],
        out=about["out"],
        limit=about["limit"],
        spectrum_limit=about.get("spectrum_limit", SPECTRUM_LIMIT),
        seed=SAMPLE_SEED,
        device=setting.device,
        command=_command(job),
        is_shown=setting.is_shown,
        for_figures=is_drawn,
    )
    if is_drawn:
        analysis_figures(found, out_folder(Path(about["out"])))


def _is_analyzed(job: Job) -> bool:
    """The certificate is the last of its records, unless another says why there is none."""
    run = Path(job.arguments["run"])
    if not (run / WEIGHTS).exists():
        return False
    asked = ("analysis", job.arguments["limit"], SAMPLE_SEED)
    ends = {
        r.measurement.weights
        for r in results.read(run)
        if (r.kind, r.measurement.limit, r.measurement.seed) == asked
        and (r.measurement.what == "certificate" or "no_certificate" in r.settings)
    }
    return bool(ends) and _outline(run, _written(run)).facts["weights"] in ends


@lru_cache(maxsize=1024)
def _outline(run: Path, written: int) -> Subject:
    """Read once for all jobs of a run, until its weights change."""
    return outline(run)


def _is_published(job: Job) -> bool:
    """A file of the run that is not older than its records."""
    run, to = Path(job.arguments["run"]), Path(job.arguments["to"])
    records, file = run / results.FILE_NAME, to / f"{run.name}.jsonl"
    if not file.exists() or not records.exists():
        return False
    return file.stat().st_mtime_ns >= records.stat().st_mtime_ns


def _report(job: Job, setting: JobSetting) -> None:
    about = job.arguments
    if about.get("page") == "demo":
        write_demo_page(job)
    else:
        write_report(_folders(job), about["out"], mixed=about["mixed"])


def _folders(job: Job) -> list[Path]:
    """What is to be reported and there: a recipe whose runs all failed may have no folder."""
    folders = [Path(folder) for folder in job.arguments["folders"]]
    return [folder for folder in folders if folder.is_dir()] or folders


def _written(run: Path) -> int:
    return (run / WEIGHTS).stat().st_mtime_ns


_KINDS: dict[str, tuple[Callable[[Job, JobSetting], object], Callable[[Job], bool]]] = {
    "train": (_train, lambda job: (Path(job.arguments["run"]) / WEIGHTS).exists()),  # written last
    "evaluate": (_evaluate, _is_evaluated),
    "analyze": (_analyze, _is_analyzed),
    "publish": (lambda job, _: publish([job.arguments["run"]], job.arguments["to"]), _is_published),
    "report": (_report, lambda job: is_current(_folders(job), job.arguments["out"])),
}
"""What does a job of each kind, and whether it has been done."""


def write_demo_page(job: Job) -> None:
    """Write the page of the job's runs, with the tokens of one image in those of seed 0."""
    folders = [Path(folder) for folder in job.arguments["folders"]]
    out = Path(job.arguments["out"])
    images, labels = sample_images(open_images("digits", "val"), image_size=8)
    firsts = {
        name: folder for folder in folders for name in MODELS if folder.name == f"{name}-seed0"
    }
    models = {name: load(run) for name, run in firsts.items()}
    times = Times(out / "jobs")
    write_demo(
        folders,
        out,
        paths={name: token_trajectory(model, images[0]) for name, model in models.items()},
        digits=attacked_digits(models),
        digit=int(labels[0]),
        seconds=sum(times.of(need).seconds for need in job.needs),
    )


def attacked_digits(models: Mapping[str, Any]) -> dict[str, Any]:
    """A few of the images that the runs were measured on, under the PGD of the page's table."""
    images, labels = sample_images(open_images("digits", "val"), ATTACKED, image_size=8)
    threat = PGD(eps=float(SHOWN), steps=10, step_size=float(SHOWN) / 4)
    answers = {}
    for name, model in models.items():
        attacked = threat(model, images, labels, seed=0)
        with torch.no_grad():
            said = [model(shown).argmax(-1).tolist() for shown in (images, attacked)]
        answers[name] = Answers(attacked, *said)
    return digits_view(images, labels.tolist(), answers)
