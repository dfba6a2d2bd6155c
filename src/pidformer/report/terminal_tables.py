"""Tables for a terminal: analysed models side by side, scores of segmentation and language runs."""

import math
from collections.abc import Mapping, Sequence

from rich.table import Table

from pidformer.analysis.summary import Analysis
from pidformer.display import plain_table

HEADINGS = ("similarity", "rank", "min Re", "outside", "worst", "growth")


def analysis_table(models: Sequence[Analysis]) -> Table:
    """A line for each model: its tokens, its spectrum, its closed loop."""
    table = plain_table(
        caption="similarity: first to last layer; rank: effective rank, last layer;\n"
        "min Re: smallest real part of kappa; outside: modes outside the unit circle;\n"
        "worst: largest radius; growth: of a perturbation of v_0, largest over depth"
    )
    table.add_column("model", overflow="fold")
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True, overflow="fold")
    for model in models:
        layers, ranks = model.tokens["similarity"]["blocks"], model.tokens["effective_rank"]
        similarity = f"{layers[0]:.3f} to {layers[-1]:.3f}"
        table.add_row(model.label, similarity, f"{ranks[-1]:.1f}", *_loop(model))
    return table


def _loop(model: Analysis) -> list[str]:
    """Numbers of the spectrum, and of the certificate where the law has one."""
    spectrum, certificate = (model.records.get(what) for what in ("spectrum", "certificate"))
    lowest = "-" if spectrum is None else f"{spectrum.metrics['min_real']:+.3f}"
    found = {} if certificate is None else certificate.metrics
    if "share_outside" not in found or "worst_radius" not in found:
        return [lowest, "-", "-", "-"]
    return [
        lowest,
        f"{100 * found['share_outside']:.2g} %",
        f"{found['worst_radius']:.3f}",
        f"{found['peak_growth']:.2f}",
    ]


_COLUMNS = {
    "segmentation": ("miou", "pixel_accuracy", "mean_accuracy"),
    "language": ("ppl", "ppl_known", "bits_per_character"),
}


def scores_table(task: str, found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Table:
    """A line for each run and row."""
    titles = {"miou": "mIoU", "ppl": "perplexity", "ppl_known": "known words"}
    shown = [titles.get(name, name.replace("_", " ")) for name in _COLUMNS[task]]
    table = plain_table("run", "row", numbers=shown)
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
