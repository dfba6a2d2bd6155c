"""Pictures of controllers: poles, stable region, tokens over depth, responses of the loop."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from torch import Tensor

from pidformer.analysis import eigenvalues
from pidformer.control import (
    PIDGains,
    design_gains,
    disturbance_response,
    frequency_response,
    is_stable,
    poles,
    root_locus,
    simulate,
    spectral_radius,
    stable_interval,
    step_response,
)
from pidformer.control.response import GainName
from pidformer.files import atomic_path
from pidformer.report.figures import Drawn, legend_look
from pidformer.report.panels import BAD, GOOD, GREY, PID, SOFTMAX, Panel, add_tips, check_format
from pidformer.report.table_view import minus, short_gains

PARTLY = "#b58900"
_DEPTH = 12
_LAYERS = 24
_LIMIT = 3.0
"""Where a response ends: an unstable one would flatten the rest."""
LEAST_I = 1e-3
"""Stands for i = 0 where radii of controllers with an integral are shaded: at 0 itself their slow
mode is gone, and the shade between it and the next gain would be of neither."""


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
    figure = Figure(figsize=(20, 9), layout="constrained")
    circle, radius, step, disturbance, region, tokens, frequency, locus = figure.subplots(2, 4).flat
    line = torch.linspace(kappa_min, 1, 201, dtype=torch.float64)
    kappas = line if kernel is None else eigenvalues(kernel)
    _draw_poles(circle, gains, kappas)
    _draw_radius(radius, gains, kappa_min)
    _draw_region(region, gains, kappa_min)
    _draw_tokens(tokens, gains, kernel, seed)
    modes = torch.linspace(kappa_min, 1, 3, dtype=torch.float64)
    _draw_over_depth(step, step_response(gains, modes, _LAYERS), modes, level=1)
    step.set_title("Step of the reference")
    _draw_over_depth(disturbance, disturbance_response(gains, modes, _LAYERS), modes, level=0)
    disturbance.set_title("Constant disturbance")
    _draw_frequency(frequency, gains, modes)
    _draw_locus(locus, gains, kappa_min)
    figure.suptitle(
        f"{gains.kind} control: p={gains.p:g}, i={gains.i:g}, d={gains.d:g}, beta={gains.beta:g}",
        fontsize=14,
    )
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130)


def stability_panel(
    marked: Mapping[str, Sequence[PIDGains]], measured: float | None = None
) -> Drawn:
    """The (p, i) plane with every run's gains; `measured` is the smallest Re kappa found."""
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


def _judged(gains: Sequence[PIDGains], measured: float | None) -> str:
    """The colour of a mark: the verdict on all layers' gains."""
    if not all(is_stable(one, 0.0) for one in gains):
        return BAD
    if measured is None or all(is_stable(one, measured) for one in gains):
        return GOOD
    return PARTLY


def _draw_poles(axes: Axes, gains: PIDGains, kappas: Tensor) -> None:
    roots = poles(gains, kappas)
    angle = np.linspace(0, 2 * np.pi, 400)
    axes.fill(np.cos(angle), np.sin(angle), color=GOOD, alpha=0.08)
    _draw_roots(axes, roots, kappas.real, "Re kappa", size=12)
    outside = roots[roots.abs() >= 1]
    ring: dict[str, Any] = {"facecolors": "none", "edgecolors": BAD, "linewidths": 0.8}
    axes.scatter(outside.real, outside.imag, s=60, zorder=4, **ring)
    axes.set_title("Poles of a layer (red: outside)")
    axes.margins(0.05)


def _draw_roots(axes: Axes, roots: Tensor, values: Tensor, label: str, *, size: float) -> None:
    """Roots (..., order), coloured by their values (...), and the unit circle."""
    angle = np.linspace(0, 2 * np.pi, 400)
    axes.plot(np.cos(angle), np.sin(angle), color=GREY, linewidth=1)
    shade = values[..., None].expand(roots.shape)
    dots = axes.scatter(roots.real, roots.imag, c=shade, s=size, cmap="viridis", zorder=3)
    axes.figure.colorbar(dots, ax=axes, label=label, shrink=0.8)
    axes.set(xlabel="Re z", ylabel="Im z", aspect="equal")


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


def _draw_plane(
    axes: Axes, gains: Sequence[PIDGains], kappa_min: float, tops: tuple[float, float], **look: Any
) -> Any:
    """The (p, i) plane of the first gains' d, shaded where every mode decays; what was shaded."""
    top_p = max(tops[0], 1.2 * max(g.p for g in gains))
    top_i = max(tops[1], 1.2 * max(g.i for g in gains))
    least = LEAST_I if any(g.i for g in gains) else 0.0
    radii = radii_map(gains[0].d, top_p, top_i, least, kappa_min)
    axes.set(xlabel="p", ylabel="i", xlim=(0, top_p), ylim=(0, top_i))
    levels = np.linspace(0.5, 1, 11)
    return axes.contourf(*radii, levels=levels, cmap="YlGn_r", extend="min", **look)


def _draw_limit(axes: Axes, d: float, kappa_min: float, **look: Any) -> None:
    """2p + i + 4d = 2 (1 + kappa_min)."""
    budget = max(0.0, 2 * (1 + kappa_min) - 4 * d)
    axes.plot([budget / 2, 0], [0, budget], color=BAD, **look)


def _draw_region(axes: Axes, gains: PIDGains, kappa_min: float) -> None:
    filled = _draw_plane(axes, [gains], kappa_min, (1.25, 2.5))
    axes.figure.colorbar(filled, ax=axes, label="worst radius", shrink=0.8)
    _draw_limit(axes, gains.d, kappa_min, linewidth=2, label="2p + i + 4d = 2 (1 + kappa_min)")
    designed = design_gains("PI" if gains.i else "P", max(kappa_min, -0.99))
    axes.plot(designed.p, designed.i, "*", color="black", markersize=11, label="fastest (d = 0)")
    color = GOOD if is_stable(gains, kappa_min) else BAD
    look: dict[str, Any] = {"markeredgecolor": "white", "markersize": 10, "clip_on": False}
    axes.plot(gains.p, gains.i, "o", color=color, label="these gains", **look)
    axes.set_title(f"Stable region for d = {gains.d:g}")
    axes.legend(fontsize=9, loc="upper right")


def _draw_map(
    figure: Figure | SubFigure, marked: Mapping[str, Sequence[PIDGains]], measured: float | None
) -> None:
    axes: Axes = figure.subplots()
    gains = [one for found in marked.values() for one in found]
    d = gains[0].d
    filled = _draw_plane(axes, gains, 0.0, (1.15, 2.1), alpha=0.75)
    figure.colorbar(filled, ax=axes, label="largest radius", shrink=0.85)
    limits: list[tuple[float, Any, str]] = [(0.0, "-", "limit, kappa from 0")]
    if measured is not None:
        text = f"limit, kappa from {measured:.2f} (measured)"
        text += ": none" if 1 + measured <= 2 * d else ""
        limits.append((measured, (0, (4, 2)), minus(text)))
    for kappa_min, dashes, text in limits:
        look: dict[str, Any] = {"linewidth": 1.8, "linestyle": dashes, "label": text}
        _draw_limit(axes, d, kappa_min, **look, clip_on=False)
    for (label, found), marker in zip(marked.items(), "osD^vP*X" * len(marked), strict=False):
        look = {"color": _judged(found, measured), "markeredgecolor": "white", "markersize": 11}
        points = [(g.p, g.i) for g in found]
        look |= {"linestyle": "none", "label": label, "clip_on": False, "zorder": 5}
        axes.plot(*zip(*points, strict=True), marker, **look)
        add_tips(axes, points, [f"{label}: p {g.p:g}, i {g.i:g}, d {g.d:g}" for g in found])
    axes.set_title(f"gains (p, i), shaded for d = {d:g}")
    axes.grid(False)
    axes.legend(**legend_look(len(marked)), loc="upper right")


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


def _draw_over_depth(axes: Axes, responses: Tensor, kappas: Tensor, *, level: float) -> None:
    """Responses (kappas, layers), and the level that they are to reach."""
    for row, kappa, shade in zip(responses, kappas, _shades(len(kappas)), strict=True):
        is_over = np.maximum.accumulate(np.abs(row.numpy()) > _LIMIT)
        shown = np.where(is_over, np.nan, row.numpy())
        axes.plot(shown, color=shade, label=f"kappa = {float(kappa):.2g}", drawstyle="steps-post")
    axes.axhline(level, color=GREY, linewidth=1, linestyle=":")
    axes.set(xlabel="layer", ylabel="value")
    axes.legend(fontsize=8)


def _draw_frequency(axes: Axes, gains: PIDGains, kappas: Tensor) -> None:
    """|T| and, dashed, |S|: where it is below 1 the loop suppresses, above 1 it amplifies."""
    omega = torch.logspace(-2, float(np.log10(np.pi)), 300, dtype=torch.float64)
    found = frequency_response(gains, kappas, omega)
    for index, shade in enumerate(_shades(len(kappas))):
        axes.loglog(omega, found.tracking[index].abs(), color=shade)
        axes.loglog(omega, found.sensitivity[index].abs(), color=shade, linestyle="--")
    axes.plot([], [], color="black", label="|T|, reference to value")
    axes.plot([], [], color="black", linestyle="--", label="|S|, sensitivity")
    axes.axhline(1, color=GREY, linewidth=1)
    axes.set(title="Frequency response", xlabel="omega, radians per layer", ylabel="size")
    axes.legend(fontsize=8)


def _draw_locus(axes: Axes, gains: PIDGains, kappa: float) -> None:
    """Where the poles go as the largest gain grows from zero to twice its value."""
    names: tuple[GainName, ...] = ("p", "i", "d")
    name = max(names, key=lambda letter: getattr(gains, letter))
    here = getattr(gains, name)
    values = torch.linspace(1e-6, max(2 * here, 1.0), 200, dtype=torch.float64)
    _draw_roots(axes, root_locus(gains, name, values, kappa), values, name, size=8)
    now = root_locus(gains, name, [here], kappa)[0]
    look: dict[str, Any] = {"s": 60, "marker": "x", "color": BAD, "zorder": 4}
    axes.scatter(now.real, now.imag, **look, label=f"{name} = {here:g}")
    axes.set_title(f"Root locus over {name} at kappa = {kappa:.2g}")
    axes.legend(fontsize=8)


def _shades(count: int) -> np.ndarray:
    return colormaps["viridis"](np.linspace(0, 0.85, count))
