"""The figures of a report as panels, with their words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from pidformer.control import PIDGains, is_stable
from pidformer.report.groups import short_gains
from pidformer.report.numbers import minus
from pidformer.report.panels import Panel, add_tips
from pidformer.report.stability import radii_map, shade_radii
from pidformer.report.style import BAD, GOOD, GREY, INK, LEAST_I, run_colors
from pidformer.report.table1 import difference_texts
from pidformer.report.training_curves import HEADLINES, Curves
from pidformer.statistics import Crossed

Drawn = tuple[Panel, str]
"""A panel and what it shows, in words."""
_MOST_TIPS = 40
"""Points of a curve that answer to hovering."""


def similarity_panel(curves: Sequence[Curves], title: str = "") -> Drawn:
    ends = "; ".join(f"{c.label} {mean_curve(c)[1][-1]:.3f}" for c in curves)
    draw = partial(
        draw_curves,
        curves=curves,
        title=title or "token similarity (1: all alike)",
        x="layer",
        y="token similarity" if title else "mean cosine",
        top=1.05,
        bottom=0.0,
    )
    where = f", {title}" if title else ""
    return Panel(draw), f"Token similarity by layer{where}. In the last layer: {ends}."


def training_panels(
    losses: Sequence[Curves], scores: Sequence[Curves], headline: str | None
) -> list[Drawn]:
    last = "; ".join(f"{c.label} {mean_curve(c)[1][-1]:.3f}" for c in losses)
    draw = partial(draw_curves, curves=losses, title="training loss", x="epoch", y="loss", log=True)
    found = [(Panel(draw), f"Training loss by epoch, at the end: {last}.")]
    if scores and headline:
        last = "; ".join(f"{c.label} {mean_curve(c)[1][-1]:.2f}" for c in scores)
        name = HEADLINES[headline]
        draw = partial(draw_curves, curves=scores, title="validation", x="epoch", y=name)
        found.append((Panel(draw), f"Validation {name} by epoch, at the end: {last}."))
    return found


def stability_panel(
    marked: Mapping[str, Sequence[PIDGains]], measured: float | None = None
) -> Drawn:
    """The (p, i) plane, shaded for kappa in [0, 1], with every run's gains in it.

    `measured` is the smallest real part of kappa that was found, drawn as a second limit.
    """
    said = []
    for label, found in marked.items():
        word = {GOOD: "stable", PARTLY: "stable for kappa in [0, 1] only", BAD: "outside"}[
            _judged(found, measured)
        ]
        said.append(f"{label} {word} ({short_gains(str(found[0]))})")
    words = f"Stable gains in the plane of p and i, kappa in [0, 1]: {'; '.join(said)}."
    if measured is not None:
        words += f" Smallest measured real part of kappa: {measured:.3f}."
    return Panel(partial(_draw_map, marked=marked, measured=measured), 6.4, 4.4), words


def differences_panel(
    found: Sequence[Crossed],
    title: str,
    labels: Sequence[str],
    words: Sequence[str],
    width: float = 4.6,
) -> Panel:
    """Differences with their 95 % intervals, a line for each: green where the word is "better",
    red where it is "worse"."""
    draw = partial(_draw_differences, found=found, title=title, labels=labels, words=words)
    return Panel(draw, width, 1.3 + 0.32 * len(found))


def _draw_differences(
    figure: Figure | SubFigure,
    found: Sequence[Crossed],
    title: str,
    labels: Sequence[str],
    words: Sequence[str],
) -> None:
    axes: Axes = figure.subplots()
    colors = {"better": GOOD, "worse": BAD}
    lines = [*zip(found, labels, words, strict=True)]
    for place, (one, label, word) in enumerate(reversed(lines)):
        color = colors.get(word, GREY)
        axes.plot([one.low, one.high], [place, place], color=color, linewidth=2.4)
        axes.plot(one.mean, place, "o", color=color, markersize=6)
        text = f"{label}: {minus(difference_texts(one)[0])}, {word}"
        add_tips(axes, [one.low, one.mean, one.high], [place] * 3, [text] * 3)
    axes.axvline(0, color=INK, linewidth=0.9)
    axes.set_yticks(range(len(found)), [*reversed(labels)])
    axes.set_ylim(-0.7, len(found) - 0.3)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_title(title)


def _legend(count: int) -> dict[str, Any]:
    """Names of many models are small and in columns, so that they leave room for the axes."""
    return {"fontsize": 10} if count <= 12 else {"fontsize": 4.5, "ncols": -(-count // 20)}


PARTLY = "#b58900"


def _judged(gains: Sequence[PIDGains], measured: float | None) -> str:
    """The colour of a mark: the verdict on all layers' gains."""
    if not all(is_stable(one, 0.0) for one in gains):
        return BAD
    if measured is None or all(is_stable(one, measured) for one in gains):
        return GOOD
    return PARTLY


def _draw_map(
    figure: Figure | SubFigure,
    marked: Mapping[str, Sequence[PIDGains]],
    measured: float | None,
) -> None:
    axes: Axes = figure.subplots()
    gains = [one for found in marked.values() for one in found]
    d = gains[0].d
    top_p = max(1.15, 1.2 * max(g.p for g in gains))
    top_i = max(2.1, 1.2 * max(g.i for g in gains))
    least = LEAST_I if any(g.i for g in gains) else 0.0
    filled = shade_radii(axes, radii_map(d, top_p, top_i, least), alpha=0.75)
    figure.colorbar(filled, ax=axes, label="largest radius", shrink=0.85)
    limits: list[tuple[float, Any, str]] = [(0.0, "-", "limit, kappa from 0")]
    if measured is not None:
        text = f"limit, kappa from {measured:.2f} (measured)"
        if 1 + measured <= 2 * d:
            text += ": none"
        limits.append((measured, (0, (4, 2)), text.replace("-", "\u2212")))
    for kappa_min, dashes, text in limits:
        budget = max(0.0, 2 * (1 + kappa_min) - 4 * d)
        line = [budget / 2, 0], [0, budget]
        axes.plot(*line, color=BAD, linewidth=1.8, linestyle=dashes, label=text, clip_on=False)
    for (label, found), marker in zip(marked.items(), "osD^vP*X" * len(marked), strict=False):
        color = _judged(found, measured)
        look: dict[str, Any] = {"color": color, "markeredgecolor": "white", "markersize": 11}
        points = [g.p for g in found], [g.i for g in found]
        axes.plot(*points, marker, **look, linestyle="none", label=label, clip_on=False, zorder=5)
        add_tips(axes, *points, [f"{label}: p {g.p:g}, i {g.i:g}, d {g.d:g}" for g in found])
    axes.set(
        title=f"gains (p, i), shaded for d = {d:g}",
        xlabel="p",
        ylabel="i",
        xlim=(0, top_p),
        ylim=(0, top_i),
    )
    axes.grid(False)
    axes.legend(**_legend(len(marked)), loc="upper right")


def mean_curve(curves: Curves) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean over runs, at the places that all have."""
    shared = set(curves.runs[0][0]).intersection(*(run[0] for run in curves.runs))
    xs = sorted(shared)
    tables = [dict(zip(*run, strict=True)) for run in curves.runs]
    return tuple(xs), tuple(sum(table[x] for table in tables) / len(tables) for x in xs)


def draw_curves(
    figure: Figure | SubFigure,
    curves: Sequence[Curves],
    title: str,
    x: str,
    y: str,
    *,
    top: float | None = None,
    bottom: float | None = None,
    log: bool = False,
    level: tuple[float, str] | None = None,
) -> None:
    """For each model a thick line, the mean, and thin lines, its runs; `level` is marked."""
    axes: Axes = figure.subplots()
    # dashed lines have the colours of the solid ones, in their order
    unused = {
        dashed: run_colors([one.is_controlled for one in curves if one.is_dashed == dashed])
        for dashed in (False, True)
    }
    for one in curves:
        color = unused[one.is_dashed].pop(0)
        if one.band is not None:
            axes.fill_between(one.runs[0][0], *one.band, color=color, alpha=0.15, linewidth=0)
        line: dict[str, Any] = {
            "color": color,
            "linestyle": (0, (3, 1.6)) if one.is_dashed else "-",
        }
        if len(one.runs) > 1:
            for xs, ys in one.runs:
                axes.plot(xs, ys, **line, linewidth=0.9, alpha=0.55)
        look = line | {"linewidth": 2.4, "label": one.label}
        xs, ys = mean_curve(one)
        axes.plot(xs, ys, **look, marker="o", markersize=4 if len(xs) < 25 else 0)
        few = slice(None, None, max(1, -(-len(xs) // _MOST_TIPS)))
        words = [f"{one.label}, {x} {a:g}: {b:.4g}" for a, b in zip(xs, ys, strict=True)]
        add_tips(axes, xs[few], ys[few], words[few])
    if level is not None:
        place, name = level
        axes.axhline(place, color=INK, linewidth=0.8, linestyle=":")
        left = axes.get_yaxis_transform()
        axes.text(0.01, place - 1.5, name, transform=left, fontsize=9.5, va="top")
    axes.set(title=title, xlabel=x, ylabel=y)
    if x == "layer":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        if high < 10 * low:  # within a decade: 4.2, not 4.2 x 10^0
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
    if top is not None:
        axes.set_ylim(top=max(top, axes.dataLim.ymax))
    if bottom is not None:
        axes.set_ylim(bottom=min(bottom, axes.dataLim.ymin))
    wide = {"handlelength": 3.2} if any(one.is_dashed for one in curves) else {}
    axes.legend(**_legend(len(curves)), loc="best", **wide)
