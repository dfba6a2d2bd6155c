"""The pictures of the page."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import NullLocator

from pidformer.report import figures
from pidformer.report.panels import GREY, INK, Panel, run_colors
from study.comparisons import Compared

_WIDTH = 4.6
_TITLE, _ROW = 36, 46
"""Letters that have room in a title, and in a title and the longest label together."""
_FREE = 4
"""Lines whose names find a free place in a panel."""


def differences_panel(
    compared: Sequence[Compared],
    title: str,
    labels: Sequence[str],
    words: Sequence[str] | None = None,
) -> Panel:
    """A line for each: variants of a metric, or the reverse.

    Coloured by `words`: those of the comparisons unless given (after a correction).
    """
    words = words or [one.word for one in compared]
    width = min(_TITLE, _ROW - max(map(len, labels)))
    found, title = [one.found for one in compared], textwrap.fill(title, max(width, 1))
    x = f"minus softmax, {compared[0].metric.unit}"
    return figures.differences_panel(found, title, labels, words, x=x)


class Point(NamedTuple):
    """A number over another, with its interval where there is one."""

    x: float
    y: float
    low: float = math.nan
    high: float = math.nan
    is_hollow: bool = False
    """Of one seed."""
    left: float = math.nan
    right: float = math.nan
    """The interval of x, where it has one."""


def points_panel(
    series: Mapping[str, Sequence[Point]],
    title: str,
    x: str,
    y: str,
    *,
    is_plain: Sequence[bool],
    is_line: bool = False,
    is_log: bool = False,
) -> Panel:
    """Points with intervals, hollow where they are of one seed; `is_line`: joined; `is_log`: and
    over a logarithmic axis."""
    draw = partial(
        _draw_points, series=series, is_plain=is_plain, is_line=is_line or is_log, is_log=is_log,
        title=title, xlabel=x, ylabel=y,
    )  # fmt: skip
    return Panel(draw, _WIDTH, 3.2)


def lines_panel(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    x: str,
    y: str,
    is_plain: Sequence[bool],
) -> Panel:
    """Points (x, y) without intervals, joined."""
    series = {label: [Point(*point) for point in points] for label, points in lines.items()}
    return points_panel(series, title, x, y, is_plain=is_plain, is_line=True)


def _draw_points(
    figure: Figure | SubFigure,
    series: Mapping[str, Sequence[Point]],
    is_plain: Sequence[bool],
    is_line: bool,
    is_log: bool,
    **words: str,
) -> None:
    axes: Axes = figure.subplots()
    colors = run_colors([not plain for plain in is_plain])
    has_intervals = any(not math.isnan(p.low) for points in series.values() for p in points)
    for number, ((label, points), color) in enumerate(zip(series.items(), colors, strict=True)):
        if not points:
            continue
        # beside each other, so that intervals of one length are seen
        aside = 1.03**number if is_line and has_intervals else 1.0
        for point in points:
            if not math.isnan(point.low):
                ends = [point.low, point.high]
                axes.plot([aside * point.x] * 2, ends, color=color, alpha=0.45)
            if not math.isnan(point.left):
                axes.plot([point.left, point.right], [point.y] * 2, color=color, alpha=0.45)
        axes.plot(
            [aside * point.x for point in points],
            [point.y for point in points],
            color=color,
            label=label,
            marker="o",
            markersize=4 if is_line and not has_intervals else 5,
            linewidth=1.8 if is_line else 0,
        )
        for point in (point for point in points if point.is_hollow):
            axes.plot(aside * point.x, point.y, "o", color=color, markerfacecolor="white")
    if has_intervals:
        axes.axhline(0, color=INK, linewidth=0.9)
    is_crossed = any(not math.isnan(point.left) for points in series.values() for point in points)
    if is_crossed:
        axes.axvline(0, color=INK, linewidth=0.9)
    if any(point.is_hollow for points in series.values() for point in points):
        axes.plot([], [], "o", color=GREY, markerfacecolor="white", label="one seed")
    if is_log:
        places = sorted({point.x for points in series.values() for point in points})
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set(**words)
    if len(series) > _FREE and (is_crossed or (is_line and not has_intervals)):
        low, high = axes.get_ylim()  # room for the names above the lines
        axes.set_ylim(low, high + 0.09 * (high - low) * -(-len(series) // 2))
        axes.legend(fontsize=8, ncols=2, loc="upper center", columnspacing=1.0)
    elif len(series) > 1 or is_line:
        axes.legend(fontsize=9)
