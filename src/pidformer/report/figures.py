"""The figures of a report as panels, with their words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from pidformer.control import PIDGains, is_stable, spectral_radius
from pidformer.report.curve import curve_points
from pidformer.report.looks import HEADLINES, Curves
from pidformer.report.panels import Panel
from pidformer.report.style import BAD, GOOD, INK, run_colors
from pidformer.report.table1 import TITLES
from pidformer.report.tables import is_controlled, short_gains
from pidformer.robustness.compare import Group

Drawn = tuple[Panel, str]
"""A panel and what it shows, in words."""


def similarity_panel(curves: Sequence[Curves]) -> Drawn:
    ends = "; ".join(f"{c.label} {_mean(c)[1][-1]:.3f}" for c in curves)
    draw = partial(
        _draw_curves,
        curves=curves,
        title="token similarity (1: all alike)",
        x="layer",
        y="mean cosine",
        top=1.05,
        bottom=0.0,
    )
    return Panel(draw), f"Token similarity by layer. In the last layer: {ends}."


def training_panels(
    losses: Sequence[Curves], scores: Sequence[Curves], headline: str | None
) -> list[Drawn]:
    last = "; ".join(f"{c.label} {_mean(c)[1][-1]:.3f}" for c in losses)
    draw = partial(
        _draw_curves, curves=losses, title="training loss", x="epoch", y="loss", log=True
    )
    found = [(Panel(draw), f"Training loss by epoch, at the end: {last}.")]
    if scores and headline:
        last = "; ".join(f"{c.label} {_mean(c)[1][-1]:.2f}" for c in scores)
        name = HEADLINES[headline]
        draw = partial(_draw_curves, curves=scores, title="validation", x="epoch", y=name)
        found.append((Panel(draw), f"Validation {name} by epoch, at the end: {last}."))
    return found


def attack_panels(groups: Sequence[Group]) -> list[Drawn]:
    """Accuracy over the budget, a panel for each attack that has rows "attack@budget"."""
    names = dict.fromkeys(row.partition("@")[0] for g in groups for run in g.runs for row in run)
    found = []
    for attack in names:
        curves = []
        for group in groups:
            points = curve_points([group], attack)
            runs = []
            for run in dict.fromkeys(str(p["run"]) for p in points):
                own = sorted((p["eps255"], p["top1"]) for p in points if p["run"] == run)
                runs.append((tuple(x for x, _ in own), tuple(y for _, y in own)))
            if runs:
                curves.append(Curves(group.label, is_controlled(group), tuple(runs)))  # type: ignore[arg-type]
        ends = "; ".join(f"{c.label} {_mean(c)[1][-1]:.1f} %" for c in curves)
        largest = max(c.runs[0][0][-1] for c in curves)
        draw = partial(
            _draw_curves,
            curves=curves,
            title=TITLES.get(attack, attack),
            x="budget, of 255",
            y="top-1, per cent",
            top=102,
            bottom=0.0,
        )
        words = (
            f"Accuracy by budget under {TITLES.get(attack, attack)}; at {largest:g}/255: {ends}."
        )
        found.append((Panel(draw), words))
    return found


def stability_panel(
    marked: Mapping[str, Sequence[PIDGains]], kappa_min: float, is_measured: bool
) -> Drawn:
    """The (p, i) plane for the gains' d, with every run's gains in it."""
    gains = [g for found in marked.values() for g in found]
    verdicts = []
    for label, found in marked.items():
        stable = [is_stable(g, kappa_min) for g in found]
        word = "inside" if all(stable) else "outside" if not any(stable) else "partly outside"
        verdicts.append(f"{label} {word} ({short_gains(str(found[0]))})")
    source = "measured" if is_measured else "assumed"
    words = f"Stable gains for kappa from {kappa_min:.3g} ({source}) to 1: {'; '.join(verdicts)}."
    draw = partial(_draw_map, marked=marked, gains=gains, kappa_min=kappa_min)
    return Panel(draw, width=6.4, height=4.4), words


def _draw_map(
    figure: Figure | SubFigure,
    marked: Mapping[str, Sequence[PIDGains]],
    gains: Sequence[PIDGains],
    kappa_min: float,
) -> None:
    axes: Axes = figure.subplots()
    d = gains[0].d
    top_p = max(1.25, 1.2 * max(g.p for g in gains))
    top_i = max(2.2, 1.2 * max(g.i for g in gains))
    grid_p, grid_i = np.meshgrid(np.linspace(0, top_p, 41), np.linspace(0, top_i, 41))
    kappas = torch.linspace(kappa_min, 1, 9, dtype=torch.float64)
    radii = np.empty_like(grid_p)
    for place in np.ndindex(grid_p.shape):
        point = PIDGains(p=float(grid_p[place]), i=float(grid_i[place]), d=d)
        radii[place] = float(spectral_radius(kappas, point).max())
    levels = np.linspace(0.5, 1, 11)
    filled = axes.contourf(
        grid_p, grid_i, radii, levels=levels, cmap="YlGn_r", extend="min", alpha=0.75
    )
    figure.colorbar(filled, ax=axes, label="largest radius", shrink=0.85)
    for value in sorted({g.d for g in gains}):
        budget = max(0.0, 2 * (1 + kappa_min) - 4 * value)
        axes.plot([budget / 2, 0], [0, budget], color=BAD, linewidth=1.8)
        axes.annotate(
            f"limit, d = {value:g}",
            (0.2 * budget / 2, 0.8 * budget),
            xytext=(6, 4),
            textcoords="offset points",
            fontsize=9.5,
            color=INK,
        )
    markers = "osD^vP*X"
    for (label, found), marker in zip(marked.items(), markers * len(marked), strict=False):
        for number, one in enumerate(found):
            color = GOOD if is_stable(one, kappa_min) else BAD
            axes.plot(
                one.p,
                one.i,
                marker,
                color=color,
                markeredgecolor="white",
                markersize=11,
                linestyle="none",
                label=label if number == 0 else None,
                clip_on=False,
                zorder=5,
            )
    axes.set(
        title=f"gains (p, i), shaded for d = {d:g}; kappa from {kappa_min:.3g} to 1",
        xlabel="p",
        ylabel="i",
        xlim=(0, top_p),
        ylim=(0, top_i),
    )
    axes.title.set_fontsize(11)
    axes.grid(False)
    axes.legend(fontsize=10, loc="upper right")


def _mean(curves: Curves) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean over runs, at the places that all have."""
    shared = set(curves.runs[0][0]).intersection(*(run[0] for run in curves.runs))
    xs = sorted(shared)
    tables = [dict(zip(*run, strict=True)) for run in curves.runs]
    return tuple(xs), tuple(sum(table[x] for table in tables) / len(tables) for x in xs)


def _draw_curves(
    figure: Figure | SubFigure,
    curves: Sequence[Curves],
    title: str,
    x: str,
    y: str,
    *,
    top: float | None = None,
    bottom: float | None = None,
    log: bool = False,
) -> None:
    """A thick line a model, the mean; thin lines its runs."""
    axes: Axes = figure.subplots()
    colors = run_colors([one.is_controlled for one in curves])
    for one, color in zip(curves, colors, strict=True):
        if len(one.runs) > 1:
            for xs, ys in one.runs:
                axes.plot(xs, ys, color=color, linewidth=0.9, alpha=0.55)
        look: dict[str, Any] = {"color": color, "linewidth": 2.4, "label": one.label}
        xs, ys = _mean(one)
        axes.plot(xs, ys, **look, marker="o", markersize=4 if len(xs) < 25 else 0)
    axes.set(title=title, xlabel=x, ylabel=y)
    if x == "layer":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if log:
        axes.set_yscale("log")
    if top is not None:
        axes.set_ylim(top=max(top, axes.dataLim.ymax))
    if bottom is not None:
        axes.set_ylim(bottom=min(bottom, axes.dataLim.ymin))
    axes.legend(fontsize=10, loc="best")
