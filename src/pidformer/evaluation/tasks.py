"""Suites for runs that are no classifiers: segmentation and language."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pidformer.devices import as_device
from pidformer.errors import InputError, check_known
from pidformer.evaluation.progress import EvaluationProgress
from pidformer.evaluation.segmentation import SegmentationSetup
from pidformer.files import model_folder, named_data
from pidformer.results import Record
from pidformer.robustness.segmentation import segmentation_threats
from pidformer.runs.open import task_of

Scores = dict[str, dict[str, dict[str, float]]]
"""Metrics by run and row."""
_Rows = Iterator[tuple[str, Callable[[], Record]]]


def shared_task(names: Sequence[str]) -> str:
    """What the models are for; a table takes one task."""
    tasks = {task_of(name) for name in names}
    if len(tasks) > 1:
        raise InputError(f"these models have different tasks ({', '.join(sorted(tasks))})")
    return tasks.pop()


def evaluate_other(
    task: str, runs: Sequence[str], suite: str, data: str | Path | None, **options: Any
) -> Scores:
    """Rows of a suite ("clean", or "robustness": corruptions and PGD, noise and lengths).

    Records of a model that is no run folder go to a folder of their own in `out`.
    """
    data = named_data(data, f"{task} needs data")
    check_known(f"suite of {task}", suite, ("clean", "robustness"))
    rows = _segmentation_rows if task == "segmentation" else _language_rows
    is_shown, out = options.pop("is_shown"), options.pop("out", None)
    shared = {k: options.pop(k) for k in ("limit", "gains", "command")}
    shared |= {"data": data, "device": as_device(options.pop("device"))}
    found: Scores = {}
    for run in runs:
        found[run], begun = {}, time.time()
        with EvaluationProgress(run, None, is_shown=is_shown) as progress:
            own = {"run": Path(run)}
            if not own["run"].is_dir() and out is not None:  # hf:FOLDER is not ours to write to
                own["folder"] = model_folder(out, run)
            for row, measure in rows(suite, shared | own, options):
                progress.begin(row)
                record = measure()
                found[run][row] = dict(record.metrics)
                progress.done(row, record, is_old=record.time < begun)
    return found


def _segmentation_rows(suite: str, shared: dict[str, Any], options: dict[str, Any]) -> _Rows:
    setup = SegmentationSetup(seed=options["seed"], ema=options["ema"], **shared)
    threats = segmentation_threats() if suite == "robustness" else {"clean": None}
    for row, threat in threats.items():
        views = options["views"] if threat is None else "single"  # attacks know a single scale
        yield row, partial(setup.measure, threat, row=row, views=views)


def _language_rows(suite: str, shared: dict[str, Any], options: dict[str, Any]) -> _Rows:
    from pidformer.evaluation.language import LanguageSetup, robustness_rows  # transformers: slow

    shared["weights"] = "ema" if options["ema"] else "auto"
    shared["precision"] = options["precision"]
    for split in options["split"].split(","):
        setup = LanguageSetup(split=split, **shared)
        if suite == "robustness":
            for row, changes in robustness_rows(
                windows=setup.longer, seed=options["seed"], can_slide=setup.can_slide
            ):
                yield f"{split}, {row}", partial(setup.measure, "strided", **changes)
        else:
            protocol = options["protocol"]
            yield f"{split}, {protocol}", partial(setup.measure, protocol)


def other_data(task: str, found: Scores) -> dict[str, Any]:
    """For machines; JSON has no NaN, a missing number is null."""
    runs = {
        run: {
            row: {name: v if math.isfinite(v) else None for name, v in metrics.items()}
            for row, metrics in rows.items()
        }
        for run, rows in found.items()
    }
    return {"task": task, "runs": runs}
