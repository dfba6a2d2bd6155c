"""A suite on a model: row by row, each recorded as soon as it is there."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pidformer.data.formats.table import image_folder
from pidformer.devices import as_device
from pidformer.errors import InputError
from pidformer.evaluation.progress import EvaluationProgress
from pidformer.evaluation.setup import Setup, data_location
from pidformer.evaluation.suite import Suite
from pidformer.files import model_folder, named_data
from pidformer.ledger import Ledger
from pidformer.results import Record
from pidformer.robustness.evaluate import KIND
from pidformer.runs.open import open_subject


class Evaluated(NamedTuple):
    records: Mapping[str, Record]
    missing: Mapping[str, str]
    """Rows that could not be measured here, and why."""

    def to_dict(self) -> dict[str, Any]:
        rows = {
            row: dict(r.metrics) | {"threat": r.measurement.threat}
            for row, r in self.records.items()
        }
        return {"rows": rows, "missing": dict(self.missing)}

    def missing_lines(self) -> list[str]:
        """What is missing, a line for each set rather than for each of its corruptions."""
        sets = dict.fromkeys((row.split("/")[0], why) for row, why in self.missing.items())
        return [f"{row} ({reason})" for row, reason in sets]


def evaluate_models(
    names: Sequence[str],
    suite: Suite,
    *,
    data: str | Path | None = None,
    out: str | Path = "evaluations",
    gains: Any = None,
    ema: bool = False,
    device: str = "auto",
    command: str | None = None,
    is_shown: bool = True,
    **settings: Any,
) -> list[Evaluated]:
    """The suite on each model that `open_subject` knows; `settings` are those of `Setup`.

    Records of a run go to its folder, those of other models to a folder of their own in `out`.
    """
    image_folder(data)  # before weights are fetched
    found = []
    for name in names:
        if ":" in name:
            named_data(data, f"{name} needs images")
        subject = open_subject(name, gains=gains, ema=ema)
        setup = Setup(
            subject=subject,
            location=data_location(subject, data),
            device=as_device(device),
            **settings,
        )
        folder = subject.folder or model_folder(out, name)
        found.append(run_suite(setup, suite, folder=folder, command=command, is_shown=is_shown))
    return found


def run_suite(
    setup: Setup,
    suite: Suite,
    *,
    folder: str | Path | None = None,
    command: str | None = None,
    is_shown: bool = True,
) -> Evaluated:
    """Measure the rows that the data allow and `folder`, by default the run's, does not have."""
    subject = setup.subject
    ledger = _ledger(setup, suite, folder, command)
    missing = {row.name: reason for row in suite.rows if (reason := row.missing(setup))}
    rows = [row for row in suite.rows if row.name not in missing]
    records: dict[str, Record] = {}
    with EvaluationProgress(subject.label, len(rows), is_shown=is_shown) as progress:
        for row in rows:
            about = {"row": row.name, **row.about(setup)}
            record = ledger.finished(about)
            is_old = record is not None
            while record is None:
                watch = progress.begin(row.name, len(setup.source))
                try:
                    work = partial(row.measure, setup, watch)
                    record = ledger.add(about | {"batch_size": setup.at_once}, work)
                except torch.OutOfMemoryError:
                    setup = _smaller(setup, row.name)
            records[row.name] = record
            progress.done(row.name, record, is_old)
    return Evaluated(records, missing)


def _smaller(setup: Setup, row: str) -> Setup:
    """With fewer images at a time, after memory ran out; refused where the user set it."""
    smaller = setup.smaller()
    if smaller is None:
        raise InputError(
            f"row {row} does not fit into memory with {setup.at_once} images at a time; use "
            f"--batch-size {max(1, setup.at_once // 4)} (finished rows are kept, and the numbers "
            "do not depend on it)"
        ) from None
    return smaller


def remaining(setup: Setup, suite: Suite) -> list[str]:
    """The rows that `run_suite` would measure now; none once it has ended."""
    ledger = _ledger(setup, suite, None, None)
    rows = [row for row in suite.rows if row.missing(setup) is None]
    return [r.name for r in rows if not ledger.finished({"row": r.name, **r.about(setup)})]


def _ledger(setup: Setup, suite: Suite, folder: str | Path | None, command: str | None) -> Ledger:
    subject = setup.subject
    return Ledger(
        KIND,
        subject.folder if folder is None else folder,
        dict(subject.facts)
        | {
            "model": subject.name,
            "label": subject.label,
            "data": str(setup.location),
            "data_hash": setup.data_hash,
            "suite": suite.name,
            "seed": setup.seed,
            "limit": setup.limit,
            "command": command,
        },
        reads_images=True,
    )
