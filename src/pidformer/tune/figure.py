"""The trials of a search as a figure: clean against robust, and the front of both."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from pidformer.files import atomic_path
from pidformer.tune.run import Tuned


def pareto_figure(tuned: Tuned, metric: str, path: str | Path) -> None:
    """Write the figure (PNG, SVG or PDF by its ending): each trial, the front, plain attention."""
    path = Path(path)
    matplotlib.use("Agg", force=False)
    figure = Figure(figsize=(5.2, 4.2), layout="constrained")
    axes = figure.subplots()
    for label, records, style, colour in (
        ("trials", tuned.trials, "o", "#b9c0c8"),
        ("front", tuned.front, "o-", "#d9622b"),
        ("plain attention", tuned.trials[:1], "s", "#2f81c7"),
    ):
        axes.plot(
            [r.metrics["clean"] for r in records],
            [r.metrics[metric] for r in records],
            style,
            color=colour,
            label=label,
        )
    for record in tuned.front:
        gains = record.details["gains"]
        text = ", ".join(f"{gains[name]:g}" for name in ("p", "i", "d", "beta"))
        place = (record.metrics["clean"], record.metrics[metric])
        axes.annotate(text, place, xytext=(4, 4), textcoords="offset points", fontsize=7)
    axes.set_xlabel("clean top-1, %")
    axes.set_ylabel(f"top-1 under {metric}, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e3e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=9)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=160, format=path.suffix.lstrip(".") or "png")
