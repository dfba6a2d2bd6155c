"""Scores of segmentation and language runs, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table

_COLUMNS = {
    "segmentation": ("miou", "pixel_accuracy", "mean_accuracy"),
    "language": ("ppl", "ppl_known", "bits_per_character"),
}


def scores_table(task: str, found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Table:
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


def _cell(metrics: Mapping[str, float], name: str) -> str:
    text = f"{metrics[name]:.3f}" if name == "bits_per_character" else f"{metrics[name]:.2f}"
    if math.isfinite(metrics.get(f"{name}_low", math.nan)):  # one block of text has no interval
        text += rf" \[{metrics[f'{name}_low']:.1f}, {metrics[f'{name}_high']:.1f}]"
    return text
