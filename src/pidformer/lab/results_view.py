"""The Results view: records with filters, and the report of the chosen runs."""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import Any

import gradio as gr

from pidformer.errors import InputError
from pidformer.lab.address import from_query, to_query
from pidformer.lab.guard import DRAWN
from pidformer.lab.results import (
    COLUMNS,
    MOST_LINES,
    NONE,
    ResultsKnobs,
    chosen,
    csv_file,
    lines,
    report_command,
    report_of,
)
from pidformer.lab.runs import Shelf, labels
from pidformer.lab.sharing import QUIET, Shared, explanation, message, sharing_box

WORDS = (
    "Every measurement is one line of a run's results.jsonl. Runs that differ only in their seed "
    "are one model in the report; the others are compared with the softmax one, image by image."
)
EQUATION = """\
difference = accuracy(PID) - accuracy(softmax) on the same images, with a 95 % interval
clear      = the interval leaves out zero"""
WIDTHS = ["140px", "90px", "110px", "160px", "90px", "70px", "165px"]
MAKE, MAKING = "Make the report", "Making the report ..."
NOTHING = (
    "<p>No run folder was named. Start the lab with some: "
    "<code>pidformer lab --run runs/softmax --run runs/pid</code>, or a folder that contains "
    "them: <code>pidformer lab --run runs</code></p>"
)


def results_view(shared: Shared, shelf: Shelf) -> gr.Textbox | None:
    """Lay it out and connect it; the box that holds its address."""
    if not shelf.runs:
        gr.HTML(NOTHING, elem_id="results-shown")
        explanation(WORDS, EQUATION)
        return None
    names = list(labels(shelf.runs))
    kinds = sorted({r.kind for run in shelf.runs for r in run.records})
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            runs = gr.CheckboxGroup(names, value=names, label="runs", elem_id="results-runs")
            kind = gr.Dropdown(
                [("all", ""), *((k, k) for k in kinds)],
                value="",
                label="kind of record",
                elem_id="results-kind",
            )
            find = gr.Textbox(
                label="only lines with", placeholder="fgsm top1", elem_id="results-find"
            )
            make = gr.Button(MAKE, variant="primary", elem_id="results-make")
            table = gr.DownloadButton("Download these lines (CSV)", elem_id="results-csv")
            page = gr.DownloadButton("Download the report (HTML)", visible=False)
            text = gr.DownloadButton("Download the report (Markdown)", visible=False)
        with gr.Column(scale=3, min_width=320):
            count = gr.HTML(elem_id="results-count", padding=False)
            shown = gr.Dataframe(
                headers=list(COLUMNS),
                type="array",
                interactive=False,
                show_label=False,
                max_height=420,
                column_widths=WIDTHS,
                elem_id="results-lines",
            )
            report = gr.HTML(elem_id="results-report", padding=False)
            explanation(WORDS, EQUATION)
            address, command, python = sharing_box("results")
    place = Path(os.environ["GRADIO_TEMP_DIR"]) / DRAWN
    place.mkdir(exist_ok=True)
    inputs = [runs, kind, find]
    outputs = [count, shown, table, address, command, python]

    def knobs_of(runs: list[str], kind: str | None, find: str) -> ResultsKnobs:
        named = "" if set(runs) == set(names) else ",".join(runs) or NONE
        return ResultsKnobs(runs=named, kind=kind or "", find=find[:200])

    def show(runs: list[str], kind: str | None, find: str) -> list[Any]:
        knobs = knobs_of(runs, kind, find)
        found = lines(shelf.runs, knobs)
        file = csv_file(found, place)
        rows = [[*line[:4], f"{line[4]:.6g}", *line[5:]] for line in found[:MOST_LINES]]
        taken = list(chosen(shelf.runs, knobs).values())
        folders = [str(run.folder) for run in taken]
        said = f"{len(found)} lines" if taken else "no run is chosen"
        said += f", the first {MOST_LINES} shown" if len(found) > MOST_LINES else ""
        python = f"from pidformer import results\n\nfor folder in {folders!r}:\n"
        python += "    for record in results.read(folder):\n"
        python += "        print(record.kind, dict(record.metrics))\n"
        address = to_query("results", knobs)
        command = report_command(taken) if taken else ""
        return [f"<p>{said}</p>", rows, str(file), address, command, python]

    def write(runs: list[str], kind: str | None, find: str) -> list[Any]:
        taken = list(chosen(shelf.runs, knobs_of(runs, kind, find)).values())
        try:
            made = report_of(taken, place)
        except (InputError, KeyError) as error:  # a record that was not written by pidformer
            hidden = gr.DownloadButton(visible=False)
            return [message(f"no report of these runs: {error}"), hidden, hidden]
        inner = html.escape(made.page.read_text(encoding="utf-8"), quote=True)
        frame = f'<iframe class="report-frame" title="report" sandbox="" srcdoc="{inner}"></iframe>'
        return [
            frame,
            gr.DownloadButton(value=str(made.page), visible=True),
            gr.DownloadButton(value=str(made.markdown), visible=True),
        ]

    for listen in (runs.input, kind.input, find.change):
        listen(show, inputs, outputs, trigger_mode="always_last", **QUIET)
    begun = make.click(
        lambda: [gr.Button(MAKING), f'<p role="status">{MAKING}</p>'], None, [make, report], **QUIET
    )
    made = begun.then(
        write,
        inputs,
        [report, page, text],
        concurrency_limit=1,
        api_visibility="private",
        show_progress="hidden",
    )
    made.then(lambda: gr.Button(MAKE), None, make, **QUIET)

    def arrive(query: str) -> list[Any]:
        knobs = from_query(ResultsKnobs, query)
        kind = knobs.kind if knobs.kind in kinds else ""
        named = list(chosen(shelf.runs, knobs))
        return [named, kind, knobs.find, *show(named, kind, knobs.find)]

    shared.on_arrival(arrive, [*inputs, *outputs])
    return address
