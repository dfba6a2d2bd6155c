"""How a job is done, and how its folders tell that it has been."""

import shlex
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pidformer import results
from pidformer.devices import as_device
from pidformer.evaluation.analysis import analyze
from pidformer.evaluation.images import remaining, run_suite
from pidformer.evaluation.setup import Setup
from pidformer.evaluation.suite import Suite, curve_suite, load_suite, read_budgets
from pidformer.files import out_folder
from pidformer.report.analysis_figures import analysis_figures
from pidformer.report.publish import publish
from pidformer.report.write import is_current, write_report
from pidformer.reproduce.demo_page import write_demo_page
from pidformer.reproduce.jobs import Job
from pidformer.runs.open import Subject, open_subject, outline, run_fingerprint
from pidformer.training import load_recipe
from pidformer.training.run import train

SAMPLE_SEED = 0
"""What the images to look into are drawn with; the same for every run."""
_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class JobSetting:
    """What all jobs of a process share."""

    device: str = "auto"
    is_shown: bool = False
    overrides: tuple[str, ...] = ()
    """For every recipe; not part of the plan."""


def do(job: Job, setting: JobSetting) -> None:
    """Work on a job until it is done; going on where an earlier try stopped."""
    with warnings.catch_warnings():
        # advice for models that others built; a run carries its own normalisation
        warnings.filterwarnings("ignore", "clean accuracy .* is that of chance")
        _DO[job.kind](job, setting)


def is_done(job: Job) -> bool:
    """Whether the job's folders hold all that it makes."""
    return _IS_DONE[job.kind](job)


def _train(job: Job, setting: JobSetting) -> None:
    about = job.arguments
    recipe = load_recipe(
        about["recipe"], [*setting.overrides, *about.get("overrides", ()), f"seed={about['seed']}"]
    )
    train(
        recipe, about["run"], data=about["data"], device=setting.device, is_shown=setting.is_shown
    )


def _is_trained(job: Job) -> bool:
    return (Path(job.arguments["run"]) / _WEIGHTS).exists()  # written last


def _evaluate(job: Job, setting: JobSetting) -> None:
    evaluate, _ = TASKS[job.arguments["task"]]
    evaluate(job, setting)


def _is_evaluated(job: Job) -> bool:
    run = Path(job.arguments["run"])
    if not (run / _WEIGHTS).exists() or not (run / results.FILE_NAME).exists():
        return False
    records = (run / results.FILE_NAME).stat()
    stamp = (repr(job), _written(run), records.st_mtime_ns, records.st_size)
    if _SEEN.get(job.id, ())[:1] != (stamp,):  # the weights or the records have changed
        _, is_evaluated = TASKS[job.arguments["task"]]
        _SEEN[job.id] = (stamp, is_evaluated(job))
    return _SEEN[job.id][1]


_SEEN: dict[str, tuple[Any, bool]] = {}
"""By job: what it was judged by, and whether it was done."""


def _evaluate_classifier(job: Job, setting: JobSetting) -> None:
    suite = suite_of(job.arguments)
    setup = _setup(job, open_subject(job.arguments["run"]), setting.device)
    run_suite(setup, suite, command=_command(job), is_shown=setting.is_shown)


def _is_classifier_evaluated(job: Job) -> bool:
    names = {r.settings.get("row") for r in results.read(job.arguments["run"])}
    suite = suite_of(job.arguments)
    wanted = {row.name for row in suite.rows} - {"clean"} or {"clean"}
    if names.isdisjoint(wanted):
        return False  # not begun: no need to open the model
    run = Path(job.arguments["run"])
    return not remaining(_setup(job, _outline(run, _written(run)), "cpu"), suite)


def _evaluate_row(job: Job, setting: JobSetting) -> None:
    about = job.arguments
    option = _OPTIONS[about["task"]]
    if about["task"] == "language":
        from pidformer.evaluation.language import evaluate_language as evaluate  # transformers
    else:
        from pidformer.evaluation.segmentation import evaluate_segmentation as evaluate
    given = f"{str(about['run'])!r}, data={str(about['data'])!r}, {option}={about['suite']!r}"
    evaluate(
        about["run"],
        data=about["data"],
        device=setting.device,
        command=f"{evaluate.__module__}.{evaluate.__name__}({given})",
        **{option: about["suite"]},
    )


_OPTIONS = {"segmentation": "views", "language": "split"}
"""Which setting of an evaluation a suite is."""


def _is_row_evaluated(job: Job) -> bool:
    """A record of these views (or this split, by the paper's protocol) and the present weights."""
    about, run = job.arguments, Path(job.arguments["run"])
    rows = ("clean", f"sliding/{about['suite']}")
    option = _OPTIONS[about["task"]]
    measured = [r.measurement for r in results.read(run) if r.kind == about["task"]]
    found = {
        m.weights
        for m in measured
        if getattr(m, option) == about["suite"] and m.row in rows and m.limit is None
    }
    return bool(found) and run_fingerprint(run) in found


def _setup(job: Job, subject: Subject, device: str) -> Setup:
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
    else:
        words += ["--suite", str(about["suite"])]
        words += [] if about.get("limit") is None else ["--limit", str(about["limit"])]
    if about.get("domain", "pixel") != "pixel":
        words += ["--domain", about["domain"]]
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
    if not (run / _WEIGHTS).exists():
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


def _publish(job: Job, setting: JobSetting) -> None:
    publish([job.arguments["run"]], job.arguments["to"])


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


def _is_reported(job: Job) -> bool:
    return is_current(_folders(job), job.arguments["out"])


def _folders(job: Job) -> list[Path]:
    """What is to be reported and there: a recipe whose runs all failed may have no folder."""
    folders = [Path(folder) for folder in job.arguments["folders"]]
    return [folder for folder in folders if folder.is_dir()] or folders


def _written(run: Path) -> int:
    return (run / _WEIGHTS).stat().st_mtime_ns


TASKS: dict[str, tuple[Callable[[Job, JobSetting], None], Callable[[Job], bool]]] = {
    "classification": (_evaluate_classifier, _is_classifier_evaluated),
    "segmentation": (_evaluate_row, _is_row_evaluated),
    "language": (_evaluate_row, _is_row_evaluated),
}
"""How the runs of a task are measured, and whether they have been."""
_DO: dict[str, Callable[[Job, JobSetting], None]] = {
    "train": _train,
    "evaluate": _evaluate,
    "analyze": _analyze,
    "publish": _publish,
    "report": _report,
}
_IS_DONE: dict[str, Callable[[Job], bool]] = {
    "train": _is_trained,
    "evaluate": _is_evaluated,
    "analyze": _is_analyzed,
    "publish": _is_published,
    "report": _is_reported,
}
