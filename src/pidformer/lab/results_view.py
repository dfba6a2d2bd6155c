"""The Results view: charts of the chosen runs, their report, and all records with filters."""

import csv
import hashlib
import html
import io
import math
import os
import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import gradio as gr

from pidformer.errors import InputError
from pidformer.files import write_whole
from pidformer.lab.address import from_query, to_query
from pidformer.lab.guard import DRAWN
from pidformer.lab.knobs import VIEWS
from pidformer.lab.runs import Catalogue, labels
from pidformer.lab.sharing import (
    QUIET,
    Shared,
    always_last,
    charts_html,
    explanation,
    message,
    sharing_box,
)
from pidformer.report.collect import Run, check_twins, inputs_hash
from pidformer.report.table1_view import robustness
from pidformer.report.write import is_current, report_figures, write_report
from pidformer.results import Record

COLUMNS = ("run", "kind", "row", "metric", "value", "step", "time")
MOST_LINES = 2000
"""Lines that a page shows; downloads have all."""
_CURVE = "train"
"""Records of training are many: only the last of each run is listed."""

NONE = "(none)"
"""Stands for the labels when no run is chosen."""

Line = tuple[str, str, str, str, float, int | None, str]


@dataclass(frozen=True, kw_only=True)
class ResultsKnobs:
    runs: str = ""
    """Labels of runs, joined by commas (one in a label is %2C); empty for all, NONE for none."""
    kind: str = ""
    """Kind of record; empty for all."""
    find: str = ""
    """Words that a line must contain."""


def chosen(runs: Sequence[Run], knobs: ResultsKnobs) -> dict[str, Run]:
    """The runs that the knobs name; all if none of those is here."""
    known = labels(runs)
    named = knobs.runs.split(",")
    wanted = {name: run for name, run in known.items() if _escaped(name) in named}
    return {} if knobs.runs == NONE else wanted or known


def _escaped(label: str) -> str:
    return label.replace(",", "%2C")


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
    return [
        (name, record.kind, row, metric, value, record.step, record.made)
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
        write_whole(path, text)
    return path


def is_mixed(runs: Sequence[Run]) -> bool:
    """Whether the runs are no twins, which a report takes only with `mixed`."""
    try:
        check_twins(runs)
    except InputError:
        return True
    return False


def report_command(runs: Sequence[Run]) -> str:
    """What makes the report of these runs, whatever their recipes."""
    folders = [str(run.folder) for run in runs]
    return shlex.join(["pidformer", "report", *folders, *(["--mixed"] if is_mixed(runs) else [])])


def python_for(runs: Sequence[Run]) -> str:
    """What prints the records of these runs."""
    return (
        "from pidformer.report.collect import collect\n\n"
        f"for run in collect({[str(run.folder) for run in runs]!r}):\n"
        "    for record in run.records:\n"
        "        print(run.label, record.kind, dict(record.metrics))\n"
    )


def report_of(runs: Sequence[Run], folder: Path) -> Path:
    """The folder of the report of these runs, whatever their recipes; made once for its records."""
    folders = [run.folder for run in runs]
    names = "\n".join(map(str, folders)) + inputs_hash(folders)
    place = folder / f"report-{hashlib.sha256(names.encode()).hexdigest()[:12]}"
    if not is_current(folders, place):
        write_report(folders, place, mixed=is_mixed(runs), command=report_command(runs))
    return place


WIDTHS = ["140px", "90px", "110px", "160px", "90px", "70px", "165px"]
FIGURES = 3
"""How many figures of a report are shown: the first that can be drawn."""
_DRAWING = threading.Lock()
"""matplotlib draws in one thread at a time."""
MAKE, MAKING = "Make the report", "Making the report ..."


def results_view(shared: Shared, catalogue: Catalogue) -> gr.Textbox:
    names = list(labels(catalogue.measured))
    kinds = sorted({r.kind for run in catalogue.measured for r in run.records})
    if not catalogue.runs:
        gr.HTML(VIEWS["results"]["examples"], padding=False, elem_id="results-examples")
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            runs = gr.CheckboxGroup(names, value=names, label="runs", elem_id="results-runs")
            make = gr.Button(MAKE, variant="primary", elem_id="results-make")
            page = gr.DownloadButton("Download the report (HTML)", visible=False)
            text = gr.DownloadButton("Download the report (Markdown)", visible=False)
        with gr.Column(scale=3, min_width=320):
            charts = gr.HTML(elem_id="results-charts", padding=False)
            report = gr.HTML(elem_id="results-report", padding=False)
            count = gr.HTML(elem_id="results-count", padding=False)
            with gr.Accordion("All records, line by line", open=False, elem_id="results-all"):
                with gr.Row():
                    kind = gr.Dropdown(
                        [("all", ""), *((k, k) for k in kinds)],
                        value="",
                        label="kind of record",
                        elem_id="results-kind",
                    )
                    find = gr.Textbox(
                        label="only lines with", placeholder="fgsm top1", elem_id="results-find"
                    )
                    table = gr.DownloadButton("Download these lines (CSV)", elem_id="results-csv")
                shown = gr.Dataframe(
                    headers=list(COLUMNS),
                    type="array",
                    interactive=False,
                    show_label=False,
                    max_height=420,
                    column_widths=WIDTHS,
                    elem_id="results-lines",
                )
            explanation("results")
            address, command, python = sharing_box("results")
    place = Path(os.environ["GRADIO_TEMP_DIR"]) / DRAWN
    place.mkdir(exist_ok=True)
    inputs = [runs, kind, find]
    outputs = [count, shown, table, address, command, python]

    def knobs_of(runs: list[str], kind: str | None, find: str) -> ResultsKnobs:
        named = "" if set(runs) == set(names) else ",".join(map(_escaped, runs)) or NONE
        return ResultsKnobs(runs=named, kind=kind or "", find=find[:200])

    def show(runs: list[str], kind: str | None, find: str) -> list[Any]:
        knobs = knobs_of(runs, kind, find)
        found = lines(catalogue.measured, knobs)
        file = csv_file(found, place)
        rows = [[*line[:4], f"{line[4]:.6g}", *line[5:]] for line in found[:MOST_LINES]]
        taken = list(chosen(catalogue.measured, knobs).values())
        said = f"{len(found)} lines of records" if taken else "no run is chosen"
        said += f", the first {MOST_LINES} shown" if len(found) > MOST_LINES else ""
        texts = [report_command(taken), python_for(taken)] if taken else ["", ""]
        return [f"<p>{said}</p>", rows, str(file), to_query("results", knobs), *texts]

    @lru_cache(maxsize=32)
    def charts_of(names: tuple[str, ...]) -> str:
        """The first figures of their report: title, a sentence, and panels."""
        taken = [labels(catalogue.measured)[name] for name in names]
        found = [each for each in report_figures(taken, robustness(taken)) if each.panels]
        parts = (
            f"<h2>{html.escape(each.title)}</h2><p>{html.escape(each.caption)}</p>"
            f"{charts_html(each.panels)}"
            for each in found[:FIGURES]
        )
        return "".join(parts) or str(VIEWS["results"]["no_chart"])

    def draw(runs: list[str]) -> str:
        try:
            with _DRAWING:
                return charts_of(tuple(runs)) if runs else ""
        except (InputError, KeyError) as error:  # a record that was not written by pidformer
            return message(f"no chart of these runs: {error}")

    def write(runs: list[str], kind: str | None, find: str) -> list[Any]:
        taken = list(chosen(catalogue.measured, knobs_of(runs, kind, find)).values())
        try:
            made = report_of(taken, place)
        except (InputError, KeyError) as error:  # a record that was not written by pidformer
            hidden = gr.DownloadButton(visible=False)
            return [message(f"no report of these runs: {error}"), hidden, hidden]
        inner = html.escape((made / "report.html").read_text(encoding="utf-8"), quote=True)
        frame = f'<iframe class="report-frame" title="report" sandbox="" srcdoc="{inner}"></iframe>'
        return [
            frame,
            gr.DownloadButton(value=str(made / "report.html"), visible=True),
            gr.DownloadButton(value=str(made / "report.md"), visible=True),
        ]

    how: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    runs.input(draw, runs, charts, trigger_mode="always_last", **how)
    always_last([runs.input, kind.input, find.change], show, inputs, outputs, **QUIET)
    begun = make.click(
        lambda: [gr.Button(MAKING), f'<p role="status">{MAKING}</p>'], None, [make, report], **QUIET
    )
    made = begun.then(write, inputs, [report, page, text], concurrency_limit=1, **how)
    made.then(lambda: gr.Button(MAKE), None, make, **QUIET)

    def arrive(query: str) -> list[Any]:
        knobs = from_query(ResultsKnobs, query)
        kind = knobs.kind if knobs.kind in kinds else ""
        named = list(chosen(catalogue.measured, knobs))
        return [named, kind, knobs.find, *show(named, kind, knobs.find)]

    seen = shared.on_sight(lambda query, runs: draw(runs), [runs], [charts], **how)
    shared.on_arrival(arrive, [*inputs, *outputs], seen)
    return address
