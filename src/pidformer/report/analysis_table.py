"""The models of an analysis side by side, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from pidformer.analysis import Certificate
from pidformer.report.analyze import Analysis

HEADINGS = (
    "run",
    "similarity",
    "eff. rank",
    "min Re kappa",
    "max |Im|",
    "outside",
    "worst",
    "growth",
)


def analysis_table(models: Sequence[Analysis]) -> Table:
    """A line for each model: the first and the last layer, the spectrum, the closed loop."""
    table = Table(
        caption="first to last layer; outside: modes outside the unit circle; worst: largest "
        "radius;\ngrowth: of a perturbation of v_0 over all layers",
        caption_justify="left",
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "run" else "right", no_wrap=True)
    for model in models:
        layers, ranks = model.similarity["blocks"], model.ranks.effective_rank.tolist()
        cells = [f"{layers[0]:.3f} to {layers[-1]:.3f}", f"{ranks[0]:.1f} to {ranks[-1]:.1f}"]
        table.add_row(model.label, *cells, *_loop(model.certificate))
    return table


def _loop(found: Certificate | str) -> list[str]:
    if isinstance(found, str):
        return ["-"] * 5
    kappa = found.spectrum.summary()
    cells = [f"{kappa.min_real:+.3f}", f"{kappa.max_imag:.3f}"]
    if found.outside is None or found.worst_radius is None:
        return [*cells, "-", "-", "-"]
    return [
        *cells,
        f"{100 * found.outside:.1f} %",
        f"{found.worst_radius:.3f}",
        f"{found.peak_growth:.2f}",
    ]
