"""The trials of a search as a figure: clean against robust, and the front of both."""

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pidformer.files import atomic_path
from pidformer.report.panels import GREY, PID, SOFTMAX, style
from pidformer.tune.run import Tuned


def pareto_figure(tuned: Tuned, metric: str, path: str | Path) -> None:
    """Write the figure (PNG, SVG or PDF by its ending): each trial, the front, plain attention."""
    path = Path(path)
    matplotlib.use("Agg", force=False)
    with matplotlib.rc_context(style()):
        figure = Figure(figsize=(5.2, 4.2), layout="constrained")
        _draw(figure.subplots(), tuned, metric)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=160, format=path.suffix.lstrip(".") or "png")


def _draw(axes: Axes, tuned: Tuned, metric: str) -> None:
    for label, records, marker, color in (
        ("trials", tuned.trials, "o", GREY),
        ("front", tuned.front, "o-", PID),
        ("softmax", tuned.trials[:1], "s", SOFTMAX),
    ):
        axes.plot(
            [r.metrics["clean"] for r in records],
            [r.metrics[metric] for r in records],
            marker,
            color=color,
            label=label,
        )
    for record in tuned.front:
        gains = record.details["gains"]
        text = ", ".join(f"{gains[name]:g}" for name in ("p", "i", "d", "beta"))
        place = (record.metrics["clean"], record.metrics[metric])
        axes.annotate(text, place, xytext=(4, 4), textcoords="offset points", fontsize=7)
    axes.set_xlabel("clean top-1, %")
    axes.set_ylabel(f"top-1 under {metric}, %")
    axes.legend(fontsize=9)
