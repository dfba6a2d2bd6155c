"""Runs that are no classifiers, evaluated and put side by side: segmentation and language."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pidformer.errors import InputError, unknown
from pidformer.robustness.segmentation import evaluate_segmentation, segmentation_threats
from pidformer.runs.open import task_of

Found = dict[str, dict[str, dict[str, float]]]
"""Metrics by run and row."""
_COLUMNS = {
    "segmentation": ("miou", "pixel_accuracy", "mean_accuracy"),
    "language": ("ppl", "ppl_known", "bits_per_character"),
}


def shared_task(names: Sequence[str]) -> str:
    """What the models are for; a table takes one task."""
    tasks = {task_of(name) for name in names}
    if len(tasks) > 1:
        raise InputError(f"these models have different tasks ({', '.join(sorted(tasks))})")
    return tasks.pop()


def evaluate_other(
    task: str, runs: Sequence[str], suite: str, data: str | Path | None, **options: Any
) -> Found:
    """Rows of a suite ("clean", or "robustness": corruptions and PGD, noise and lengths)."""
    if data is None:
        raise InputError(f"{task} needs data: say where with --data DIR")
    if suite not in ("clean", "robustness"):
        raise unknown(f"suite of {task}", suite, ("clean", "robustness"))
    rows = _segmentation_rows if task == "segmentation" else _language_rows
    console = Console(stderr=True, quiet=not options.pop("is_shown"))
    found: Found = {}
    for run in runs:
        found[run] = {}
        for row, metrics in rows(run, suite, data, options):
            found[run][row] = {k: v for k, v in metrics.items() if isinstance(v, float)}
            value = f"{_COLUMNS[task][0]} {metrics[_COLUMNS[task][0]]:.2f}"
            console.print(f"{run}  {row}: {value}", highlight=False, soft_wrap=True)
    return found


def _segmentation_rows(
    run: str, suite: str, data: str | Path, options: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    shared = {k: options[k] for k in ("views", "device", "limit", "seed", "gains", "ema")}
    shared["command"] = options["command"]
    threats = segmentation_threats() if suite == "robustness" else {"clean": None}
    for row, threat in threats.items():
        views = shared["views"] if threat is None else "single"  # attacks know a single scale
        settings = {**shared, "views": views}
        yield row, evaluate_segmentation(run, data=data, threat=threat, row=row, **settings)


def _language_rows(
    run: str, suite: str, data: str | Path, options: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    from pidformer.training.evaluate_language import (  # transformers take seconds to import
        evaluate_language,
        evaluate_language_robustness,
    )

    shared = {k: options[k] for k in ("device", "limit", "gains", "command")}
    shared["weights"] = "ema" if options["ema"] else "auto"
    for split in options["split"].split(","):
        if suite == "robustness":
            noisy = evaluate_language_robustness(
                run, data=data, split=split, seed=options["seed"], **shared
            )
            yield from ((f"{split}, {row}", metrics) for row, metrics in noisy.items())
        else:
            protocol = options["protocol"]
            found = evaluate_language(run, data=data, split=split, protocol=protocol, **shared)
            yield f"{split}, {protocol}", found


def other_data(task: str, found: Found) -> dict[str, Any]:
    """For machines; JSON has no NaN, a missing number is null."""
    runs = {
        run: {
            row: {name: v if math.isfinite(v) else None for name, v in metrics.items()}
            for row, metrics in rows.items()
        }
        for run, rows in found.items()
    }
    return {"task": task, "runs": runs}


def scores_table(task: str, found: Found) -> Table:
    """A line for each run and row."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("run")
    table.add_column("row")
    titles = {"miou": "mIoU", "ppl": "perplexity", "ppl_known": "known words"}
    for name in _COLUMNS[task]:
        table.add_column(titles.get(name, name.replace("_", " ")), justify="right")
    for run, rows in found.items():
        for row, metrics in rows.items():
            cells = [_cell(metrics, name) for name in _COLUMNS[task]]
            table.add_row(run, row, *cells)
    return table


def _cell(metrics: dict[str, float], name: str) -> str:
    text = f"{metrics[name]:.3f}" if name == "bits_per_character" else f"{metrics[name]:.2f}"
    if math.isfinite(metrics.get(f"{name}_low", math.nan)):  # one block of text has no interval
        text += rf" \[{metrics[f'{name}_low']:.1f}, {metrics[f'{name}_high']:.1f}]"
    return text
