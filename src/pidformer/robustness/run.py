"""A suite on a model: row by row, each recorded as soon as it is there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pidformer.data.formats.table import image_folder
from pidformer.devices import as_device
from pidformer.errors import InputError
from pidformer.results import Record
from pidformer.robustness.bench import Bench
from pidformer.robustness.evaluate import Ledger
from pidformer.robustness.progress import Progress
from pidformer.robustness.suite import Suite
from pidformer.runs.open import open_subject


class Evaluated(NamedTuple):
    """What a suite gave for one model."""

    records: Mapping[str, Record]
    """By row."""
    missing: Mapping[str, str]
    """Rows that could not be measured here, and why."""

    def to_dict(self) -> dict[str, Any]:
        rows = {
            row: dict(r.metrics) | {"threat": r.settings["threat"]}
            for row, r in self.records.items()
        }
        return {"rows": rows, "missing": dict(self.missing)}

    def missing_lines(self) -> list[str]:
        """What is missing, a line for each set rather than for each of its corruptions."""
        sets: dict[tuple[str, str], int] = {}
        for row, reason in self.missing.items():
            key = (row.split("/")[0], reason)
            sets[key] = sets.get(key, 0) + 1
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
    """The suite on each model that `open_subject` knows; `settings` are those of `Bench`.

    Records of a run go to its folder, those of other models to a folder of their own in `out`.
    """
    image_folder(data)  # before weights are fetched
    found = []
    for name in names:
        if data is None and ":" in name:
            raise InputError(f"{name} needs images: say where with --data DIR")
        subject = open_subject(name, gains=gains, ema=ema)
        location = data or subject.data
        if location is None or (data is None and location != "digits"):
            trained = f", trained on {location}," if location else ""
            raise InputError(f"{name}{trained} needs images: say where with --data DIR")
        bench = Bench(subject=subject, location=location, device=as_device(device), **settings)
        folder = subject.folder or Path(out) / re.sub(r"[^\w.-]+", "-", name)
        shown = run_suite(bench, suite, folder=folder, command=command, is_shown=is_shown)
        found.append(shown)
    return found


def run_suite(
    bench: Bench,
    suite: Suite,
    *,
    folder: str | Path | None = None,
    command: str | None = None,
    is_shown: bool = True,
) -> Evaluated:
    """Measure every row of the suite that this bench can show; finished ones are not run again.

    Records go to `folder`, by default the run folder of the model.
    """
    subject = bench.subject
    ledger = _ledger(bench, suite, folder, command)
    missing = {row.name: reason for row in suite.rows if (reason := row.missing(bench))}
    rows = [row for row in suite.rows if row.name not in missing]
    records: dict[str, Record] = {}
    with Progress(subject.label, len(rows), is_shown=is_shown) as progress:
        for row in rows:
            is_old = ledger.finished(row.name, row.about(bench)) is not None
            while row.name not in records:
                watch = progress.begin(row.name, len(bench.source))
                about = row.about(bench) | {"batch_size": bench.at_once}
                try:
                    work = partial(row.measure, bench, watch)
                    records[row.name] = ledger.measure(row.name, about, work)
                except torch.OutOfMemoryError:
                    bench = _smaller(bench, row.name)
            progress.done(row.name, records[row.name], is_old)
    return Evaluated(records, missing)


def _smaller(bench: Bench, row: str) -> Bench:
    """With fewer images at a time, after memory ran out; refused where that is not ours to say."""
    smaller = bench.smaller()
    if smaller is None:
        raise InputError(
            f"row {row} does not fit into memory with {bench.at_once} images at a time; use "
            f"--batch-size {max(1, bench.at_once // 4)} (finished rows are kept, and the numbers "
            "do not depend on it)"
        ) from None
    return smaller


def remaining(bench: Bench, suite: Suite, *, folder: str | Path | None = None) -> list[str]:
    """The rows that `run_suite` would measure now; none once it has ended."""
    ledger = _ledger(bench, suite, folder, None)
    return [
        row.name
        for row in suite.rows
        if row.missing(bench) is None and ledger.finished(row.name, row.about(bench)) is None
    ]


def _ledger(bench: Bench, suite: Suite, folder: str | Path | None, command: str | None) -> Ledger:
    subject = bench.subject
    return Ledger(
        folder=subject.folder if folder is None else folder,
        settings=dict(subject.facts)
        | {
            "model": subject.name,
            "label": subject.label,
            "data": str(bench.location),
            "data_hash": bench.data_hash,
            "suite": suite.name,
            "seed": bench.seed,
            "limit": bench.limit,
            "command": command,
        },
    )
