"""Made-up studies, and what a page says of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from pidformer import results
from pidformer.report.collect import PublishedRun
from pidformer.report.metrics import Metric
from pidformer.results import Record
from pidformer.robustness.compare import hits
from study.pages import results_pages
from study.records import Study


def cells(text, start):
    line = next(line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def page_of(study):
    """The text of its own page."""
    return results_pages([study]).texts[f"results/{study.name}.md"]


def outcomes(runs, name, row):
    chosen = sorted(run for run in runs if run.name.startswith(f"{name}-"))
    found = [next(r for r in results.read(run) if r.settings.get("row") == row) for run in chosen]
    return np.stack([hits(record) for record in found])


def study_of(values, seeds=(0, 1, 2), **more):
    """A study whose runs have these values by variant; softmax is the plain one."""
    runs = []
    for variant, numbers in values.items():
        for seed, number in zip(seeds, numbers, strict=True):
            about = {"study": "s", "run": f"{variant}-seed{seed}", "variant": variant, "seed": seed}
            about |= {"task": "classification", "twin": "t", "recipe": {"model": {}}}
            about |= {"gains": None if variant.startswith("softmax") else "PIDGains(p=1)"} | more
            header = Record(kind="run", metrics={}, settings=about)
            own = {"row": "a", "label": about["run"]}
            record = Record(kind="robustness", metrics={"x": number}, settings=own)
            runs.append(
                PublishedRun(
                    folder=Path(f"{about['run']}.jsonl"),
                    header=header,
                    records=(record,),
                    recipe=about["recipe"],
                )
            )
    return Study(name="s", title="S", about="", runs=tuple(runs))


def metric(better=1):
    return Metric(
        title="x",
        find=lambda run: run.one("robustness", row="a"),
        read=lambda record: record.metrics["x"],
        better=better,
    )


def with_curves(study, curves):
    """The study, its runs (by name) with these curves of the control."""
    runs = [
        replace(run, header=replace(run.header, details={"control": curves[run.label]}))
        if run.label in curves
        else run
        for run in study.runs
    ]
    return study.only(runs)
