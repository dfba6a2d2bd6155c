"""The growth of cost as a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import LogFormatter, NullFormatter, ScalarFormatter

from benchmarks.growth import AXES, OVER_BATCH, OVER_DEPTH, OVER_TOKENS, STATE
from pidformer.bench.timing import Timing
from pidformer.report.panels import Panel, check_format, run_colors, save_panels

RATIO = "ratio"
Reading = Callable[[Timing], float | None]


class _Plain(LogFormatter):
    """0.01 where matplotlib writes 1e-02."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def growth_figure(rows: Sequence[Timing], path: str | Path) -> bool:
    """Write time, peak memory and state over size as PNG or SVG; False if there is nothing to."""
    check_format(path, (".png", ".svg"))
    panels = []
    for what, title in (
        (OVER_TOKENS, "attention layer"),
        (OVER_DEPTH, "training step"),
        (OVER_BATCH, "training step"),
    ):
        panels += _panel(rows, what, f"{title}, time", "ms", lambda row: _times(row.value, 1e3))
        panels += _panel(
            rows, what, f"{title}, peak memory", "MB", lambda row: _times(row.peak_bytes, 1e-6)
        )
    panels += _panel(rows, STATE, "state of the controller", "MB", lambda r: _times(r.value, 1e-6))
    panels += _panel(rows, OVER_TOKENS, "attention layer, time", RATIO, lambda row: row.ratio)
    if not panels:
        return False
    save_panels(panels, Path(path))
    return True


def _times(value: float | None, scale: float) -> float | None:
    return None if value is None else scale * value


def _panel(rows: Sequence[Timing], what: str, title: str, unit: str, read: Reading) -> list[Panel]:
    """The panel, if there is something in it."""
    axis = AXES[what]
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        number = read(row)
        if row.what == what and number is not None:
            lines.setdefault(row.label, []).append((row.sizes[axis], number))
    if not lines:
        return []
    return [Panel(partial(_draw, lines=lines, title=title, axis=axis, unit=unit))]


def _draw(
    figure: Figure | SubFigure,
    lines: dict[str, list[tuple[int, float]]],
    title: str,
    axis: str,
    unit: str,
) -> None:
    axes: Axes = figure.subplots()
    colors = run_colors([label.startswith("PID") for label in lines])
    for (label, points), color in zip(lines.items(), colors, strict=True):
        xs, ys = zip(*sorted(points), strict=True)
        dashes = "--" if label.startswith("PID") else "-"  # lines may lie on each other
        axes.plot(xs, ys, dashes, color=color, linewidth=2.2, marker="o", markersize=4, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({x for points in lines.values() for x, _ in points})
    axes.set_xticks(ticks[::2] if len(ticks) > 6 else ticks)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    heights = {y for points in lines.values() for _, y in points}
    if unit == RATIO or len(heights) == 1:  # constant: a logarithmic axis would have no span
        axes.set_yscale("linear")
        axes.set_ylim(0, 1.2 * max(heights))
    else:
        axes.yaxis.set_major_formatter(_Plain())
        axes.yaxis.set_minor_formatter(_Plain(minor_thresholds=(1.5, 0.7)))
    axes.set(title=title, xlabel=axis, ylabel=unit)
    axes.legend(fontsize=10, loc="best")
