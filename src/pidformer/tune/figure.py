"""The trials of a search as a figure: clean against robust, and the front of both."""

from pathlib import Path

from matplotlib.axes import Axes

from pidformer.report.panels import GREY, PID, SOFTMAX, Panel, save_panels
from pidformer.tune.run import Tuned


def pareto_figure(tuned: Tuned, metric: str, path: str | Path) -> None:
    """Write the figure (PNG, SVG or PDF by its ending): each trial, the front, plain attention."""
    panel = Panel(lambda figure: _draw(figure.subplots(), tuned, metric), 5.2, 4.2)
    save_panels([panel], Path(path))


def _draw(axes: Axes, tuned: Tuned, metric: str) -> None:
    for label, records, marker, color in (
        ("trials", tuned.trials, "o", GREY),
        ("front", tuned.front, "o-", PID),
        ("softmax", tuned.trials[:1], "s", SOFTMAX),
    ):
        points = [(r.metrics["clean"], r.metrics[metric]) for r in records]
        axes.plot(*zip(*points, strict=True), marker, color=color, label=label)
    for record in tuned.front:
        gains = record.details["gains"]
        text = ", ".join(f"{gains[name]:g}" for name in ("p", "i", "d", "beta"))
        place = (record.metrics["clean"], record.metrics[metric])
        axes.annotate(text, place, xytext=(4, 4), textcoords="offset points", fontsize=7)
    axes.set_xlabel("clean top-1, %")
    axes.set_ylabel(f"top-1 under {metric}, %")
    axes.legend(fontsize=9)
