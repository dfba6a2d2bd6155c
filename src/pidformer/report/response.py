"""A controller's loop as panels: step, disturbance, frequency and the locus of its poles."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes

from pidformer.control import (
    PIDGains,
    disturbance_response,
    frequency_response,
    root_locus,
    step_response,
)
from pidformer.control.response import GainName
from pidformer.report.style import BAD, GREY

_LAYERS = 24
_LIMIT = 3.0
"""Where a response ends: an unstable one would flatten the rest."""


def draw_over_depth(axes: Axes, gains: PIDGains, kappas: torch.Tensor, *, of: str) -> None:
    """The response to a step of the reference, or to a constant disturbance."""
    function = step_response if of == "step" else disturbance_response
    shades = _shades(len(kappas))
    for row, kappa, shade in zip(function(gains, kappas, _LAYERS), kappas, shades, strict=True):
        is_over = np.maximum.accumulate(np.abs(row.numpy()) > _LIMIT)
        shown = np.where(is_over, np.nan, row.numpy())
        axes.plot(shown, color=shade, label=f"kappa = {float(kappa):.2g}", drawstyle="steps-post")
    axes.axhline(1 if of == "step" else 0, color=GREY, linewidth=1, linestyle=":")
    titles = {"step": "Step of the reference", "disturbance": "Constant disturbance"}
    axes.set(title=titles[of], xlabel="layer", ylabel="value")
    axes.legend(fontsize=8)


def draw_frequency(axes: Axes, gains: PIDGains, kappas: torch.Tensor) -> None:
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


def draw_locus(axes: Axes, gains: PIDGains, kappa: float) -> None:
    """Where the poles go as the largest gain grows from zero to twice its value."""
    names: tuple[GainName, ...] = ("p", "i", "d")
    name = max(names, key=lambda letter: getattr(gains, letter))
    here = getattr(gains, name)
    values = torch.linspace(1e-6, max(2 * here, 1.0), 200, dtype=torch.float64)
    roots = root_locus(gains, name, values, kappa)
    angle = np.linspace(0, 2 * np.pi, 400)
    axes.plot(np.cos(angle), np.sin(angle), color=GREY, linewidth=1)
    shade = values[:, None].expand(roots.shape)
    dots = axes.scatter(roots.real, roots.imag, c=shade, s=8, cmap="viridis", zorder=3)
    now = root_locus(gains, name, [here], kappa)[0]
    axes.scatter(
        now.real, now.imag, s=60, marker="x", color=BAD, zorder=4, label=f"{name} = {here:g}"
    )
    axes.figure.colorbar(dots, ax=axes, label=name, shrink=0.8)
    title = f"Root locus over {name} at kappa = {kappa:.2g}"
    axes.set(title=title, xlabel="Re z", ylabel="Im z", aspect="equal")
    axes.legend(fontsize=8)


def _shades(count: int) -> list[str]:
    from matplotlib import colormaps, colors

    return [colors.to_hex(colormaps["viridis"](x)) for x in np.linspace(0, 0.85, count)]
