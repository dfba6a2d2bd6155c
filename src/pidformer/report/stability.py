"""One picture of a controller: poles, stable region, tokens over depth, responses of its loop."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pidformer.analysis import eigenvalues
from pidformer.control import (
    PIDGains,
    design_gains,
    is_stable,
    poles,
    simulate,
    spectral_radius,
    stable_interval,
)
from pidformer.files import atomic_path
from pidformer.report.response import draw_frequency, draw_locus, draw_over_depth
from pidformer.report.style import BAD, GOOD, GREY, LEAST_I, PID, SOFTMAX, check_format

_DEPTH = 12


def stability_figure(
    gains: PIDGains,
    path: str | Path,
    *,
    kappa_min: float = 0.0,
    kernel: Tensor | None = None,
    seed: int = 0,
) -> None:
    """Write the figure to `path` (PNG, SVG or PDF by its ending).

    With a `kernel`, poles are those of its eigenvalues and the tokens move under it; otherwise
    kappa runs over [kappa_min, 1] and the tokens move under a random kernel with kappa in [0, 1].
    """
    check_format(path)
    matplotlib.use("Agg", force=False)
    figure = Figure(figsize=(20, 9), layout="constrained")
    circle, radius, step, disturbance, region, tokens, frequency, locus = figure.subplots(2, 4).flat
    kappas = (
        torch.linspace(kappa_min, 1, 201, dtype=torch.float64)
        if kernel is None
        else eigenvalues(kernel)
    )
    _draw_poles(circle, gains, kappas)
    _draw_radius(radius, gains, kappa_min)
    _draw_region(region, gains, kappa_min)
    _draw_tokens(tokens, gains, kernel, seed)
    modes = torch.linspace(kappa_min, 1, 3, dtype=torch.float64)
    draw_over_depth(step, gains, modes, of="step")
    draw_over_depth(disturbance, gains, modes, of="disturbance")
    draw_frequency(frequency, gains, modes)
    draw_locus(locus, gains, kappa_min)
    figure.suptitle(
        f"{gains.kind} control: p={gains.p:g}, i={gains.i:g}, d={gains.d:g}, beta={gains.beta:g}",
        fontsize=14,
    )
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130)


def _draw_poles(axes: Axes, gains: PIDGains, kappas: Tensor) -> None:
    roots = poles(gains, kappas)
    angle = np.linspace(0, 2 * np.pi, 400)
    axes.fill(np.cos(angle), np.sin(angle), color=GOOD, alpha=0.08)
    axes.plot(np.cos(angle), np.sin(angle), color=GREY, linewidth=1)
    shade = kappas.real[..., None].expand(roots.shape)
    dots = axes.scatter(roots.real, roots.imag, c=shade, s=12, cmap="viridis", zorder=3)
    outside = roots[roots.abs() >= 1]
    axes.scatter(
        outside.real,
        outside.imag,
        s=60,
        facecolors="none",
        edgecolors=BAD,
        linewidths=0.8,
        zorder=4,
    )
    axes.figure.colorbar(dots, ax=axes, label="Re kappa", shrink=0.8)
    axes.set(title="Poles of a layer (red: outside)", xlabel="Re z", ylabel="Im z", aspect="equal")
    axes.margins(0.05)


def _draw_radius(axes: Axes, gains: PIDGains, kappa_min: float) -> None:
    kappas = torch.linspace(-1, 1, 801, dtype=torch.float64)
    radii = spectral_radius(gains, kappas)
    axes.axhline(1, color=GREY, linewidth=1)
    axes.axvspan(kappa_min, 1, color=GREY, alpha=0.12, label=f"looked at: [{kappa_min:g}, 1]")
    for below, color, label in ((True, GOOD, "stable"), (False, BAD, "unstable")):
        part = torch.where((radii < 1) == below, radii, torch.nan)
        if bool(part.isfinite().any()):
            axes.plot(kappas, part, color=color, linewidth=2.5, label=label)
    interval = stable_interval(gains)
    if interval and -1 < interval[0] < 1:
        axes.axvline(interval[0], color=BAD, linestyle=":", linewidth=1)
        axes.annotate(
            f"kappa = {interval[0]:.3g}",
            (interval[0], axes.get_ylim()[1]),
            xytext=(4, -12),
            textcoords="offset points",
            fontsize=9,
        )
    axes.set(title="Spectral radius", xlabel="kappa (kernel eigenvalue)", ylabel="largest |pole|")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=9)


def shade_radii(axes: Axes, radii: tuple[np.ndarray, np.ndarray, np.ndarray], **look: Any) -> Any:
    """Shade the (p, i) plane where every mode decays; what `radii_map` gives."""
    levels = np.linspace(0.5, 1, 11)
    return axes.contourf(*radii, levels=levels, cmap="YlGn_r", extend="min", **look)


@cache
def radii_map(
    d: float, top_p: float, top_i: float, least_i: float, kappa_min: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p, i and the worst radius over kappa in [kappa_min, 1], on a grid."""
    grid_p, grid_i = np.meshgrid(np.linspace(0, top_p, 31), np.linspace(0, top_i, 31))
    kappas = torch.linspace(kappa_min, 1, 9, dtype=torch.float64)
    radii = np.empty_like(grid_p)
    for place in np.ndindex(grid_p.shape):
        point = PIDGains(p=float(grid_p[place]), i=max(least_i, float(grid_i[place])), d=d)
        radii[place] = float(spectral_radius(point, kappas).max())
    return grid_p, grid_i, radii


def _draw_region(axes: Axes, gains: PIDGains, kappa_min: float) -> None:
    top_p = max(1.2 * gains.p, 1.25)
    top_i = max(1.2 * gains.i, 2.5)
    least = LEAST_I if gains.i else 0.0
    filled = shade_radii(axes, radii_map(gains.d, top_p, top_i, least, kappa_min))
    axes.figure.colorbar(filled, ax=axes, label="worst radius", shrink=0.8)
    budget = 2 * (1 + kappa_min) - 4 * gains.d
    axes.plot(
        [budget / 2, 0],
        [0, budget],
        color=BAD,
        linewidth=2,
        label="2p + i + 4d = 2 (1 + kappa_min)",
    )
    designed = design_gains("PI" if gains.i else "P", max(kappa_min, -0.99))
    axes.plot(designed.p, designed.i, "*", color="black", markersize=11, label="fastest (d = 0)")
    color = GOOD if is_stable(gains, kappa_min) else BAD
    axes.plot(
        gains.p,
        gains.i,
        "o",
        color=color,
        markeredgecolor="white",
        markersize=10,
        label="these gains",
        clip_on=False,
    )
    axes.set(
        title=f"Stable region for d = {gains.d:g}",
        xlabel="p",
        ylabel="i",
        xlim=(0, top_p),
        ylim=(0, top_i),
    )
    axes.legend(fontsize=9, loc="upper right")


def _draw_tokens(axes: Axes, gains: PIDGains, kernel: Tensor | None, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    if kernel is None:
        # Queries equal to keys: a kernel with its whole spectrum in [0, 1].
        tokens = torch.randn(8, 4, generator=generator, dtype=torch.float64)
        kernel = (tokens @ tokens.T / 2).softmax(-1)
    count = min(len(kernel), 12)
    start = torch.randn(len(kernel), 2, generator=generator, dtype=torch.float64)
    free = simulate(kernel, start, None, _DEPTH)
    held = simulate(kernel, start, gains, _DEPTH)
    shown = torch.linspace(0, len(kernel) - 1, count).long()
    for token in shown:
        axes.plot(*free[:, token].T, color=SOFTMAX, linewidth=1, alpha=0.8)
        axes.plot(*held[:, token].T, color=PID, linewidth=1.4, alpha=0.9)
    for points, color, marker, label in (
        (start, "black", "o", "first layer"),
        (free[-1], SOFTMAX, "s", f"layer {_DEPTH}, softmax"),
        (held[-1], PID, "^", f"layer {_DEPTH}, {gains.kind}"),
    ):
        x, y = points[shown].T
        axes.scatter(x, y, s=28, color=color, marker=marker, zorder=4, label=label)
    axes.set(title="Tokens over depth", xlabel="first coordinate", ylabel="second coordinate")
    axes.legend(fontsize=9)
