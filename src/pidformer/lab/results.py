"""The Results view as functions: records chosen, listed, and put into a report."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pidformer.errors import InputError
from pidformer.files import atomic_path
from pidformer.lab.runs import labels
from pidformer.report.collect import Run, check_twins, inputs_hash
from pidformer.report.write import Report, write_report
from pidformer.results import Record

COLUMNS = ("run", "kind", "row", "metric", "value", "step", "time")
MOST_LINES = 2000
"""Lines that a page shows; downloads have all."""
_CURVE = "train"
"""Records of training are many: only the last of each run is listed."""

NONE = "(none)"
"""In place of labels, when no run is chosen."""

Line = tuple[str, str, str, str, float, int | None, str]


@dataclass(frozen=True, kw_only=True)
class ResultsKnobs:
    """What a visitor chose."""

    runs: str = ""
    """Labels of runs, joined by commas; empty for all, NONE for none."""
    kind: str = ""
    """Kind of record; empty for all."""
    find: str = ""
    """Words that a line must contain."""


def chosen(runs: Sequence[Run], knobs: ResultsKnobs) -> dict[str, Run]:
    """The runs that the knobs name; all if they name nobody that is here."""
    known = labels(runs)
    if knobs.runs == NONE:
        return {}
    wanted = [name for name in knobs.runs.split(",") if name in known]
    return {name: known[name] for name in wanted} if wanted else known


def lines(runs: Sequence[Run], knobs: ResultsKnobs) -> list[Line]:
    """One line a metric of a record, filtered."""
    words = knobs.find.lower().split()
    found = []
    for name, run in chosen(runs, knobs).items():
        records = [r for r in run.records if r.kind != _CURVE]
        records += [r for r in run.records if r.kind == _CURVE][-1:]
        for record in records:
            if knobs.kind and record.kind != knobs.kind:
                continue
            for line in _lines(name, record):
                text = " ".join(map(str, line)).lower()
                if all(word in text for word in words):
                    found.append(line)
    return found


def _lines(name: str, record: Record) -> list[Line]:
    row = str(record.settings.get("row") or record.settings.get("what") or "")
    made = datetime.fromtimestamp(record.time, UTC).strftime("%Y-%m-%d %H:%M")
    return [
        (name, record.kind, row, metric, value, record.step, made)
        for metric, value in record.metrics.items()
        if math.isfinite(value)
    ]


def as_csv(found: Sequence[Line]) -> str:
    """The lines for a spreadsheet. A text that it would take for a formula gets a quote before."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in found:
        writer.writerow(
            "'" + x if isinstance(x, str) and x[:1] in ("=", "+", "-", "@") else x for x in line
        )
    return text.getvalue()


def csv_file(found: Sequence[Line], folder: Path) -> Path:
    """The lines in a file named by its content: visitors with the same lines share it."""
    text = as_csv(found)
    path = folder / f"lines-{hashlib.sha256(text.encode()).hexdigest()[:12]}.csv"
    if not path.exists():
        with atomic_path(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return path


def report_command(runs: Sequence[Run]) -> str:
    """What makes the report of these runs, whatever their recipes."""
    try:
        check_twins(runs)
    except InputError:
        return _command(runs, "--mixed")
    return _command(runs)


def report_of(runs: Sequence[Run], folder: Path) -> Report:
    """The report of these runs, made anew when a record is; whatever their recipes."""
    folders = [run.folder for run in runs]
    names = "\n".join(map(str, folders)) + inputs_hash(folders)
    place = folder / f"report-{hashlib.sha256(names.encode()).hexdigest()[:12]}"
    try:
        return write_report(folders, place, command=_command(runs))
    except InputError:  # no twins
        return write_report(folders, place, mixed=True, command=_command(runs, "--mixed"))


def _command(runs: Sequence[Run], *options: str) -> str:
    return shlex.join(["pidformer", "report", *(str(run.folder) for run in runs), *options])
