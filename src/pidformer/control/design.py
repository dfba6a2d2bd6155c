"""Controller design: the gains that make the slowest mode as fast as it can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import numpy as np
import scipy
import torch
from numpy.typing import NDArray

from pidformer.control.gains import Kind, PIDGains
from pidformer.control.stability import SETTLED, check_range, settling_depth, spectral_radius
from pidformer.errors import InputError, unknown

DESIGNS = ("P", "PD", "PI", "PID")
_GRID = 129
"""Points of [kappa_min, 1] that the search looks at; the ends, where the worst lies, are among
them. `worst_radius` on a fine grid judges the result."""


def worst_radius(gains: PIDGains, kappa_min: float = 0.0, points: int = 2001) -> float:
    """max over real kappa in [kappa_min, 1] of the spectral radius."""
    kappas = torch.linspace(kappa_min, 1, points, dtype=torch.float64)
    return float(spectral_radius(kappas, gains).max())


def design_gains(
    kind: str,
    kappa_min: float = 0.0,
    *,
    beta: float = 1.0,
    d: float | None = None,
    max_settling_depth: int | None = None,
) -> PIDGains:
    """Gains that minimise the worst spectral radius over real kappa in [kappa_min, 1].

    Closed forms, with m = (1 + kappa_min) / 2:

        P:  p = m,      radius (1 - kappa_min) / 2
        PI: p = i = m,  radius sqrt((1 - kappa_min) / 2)

    The explicit difference of the D term only narrows the stable region, so PD and PID are best at
    d = 0 and return the P and PI designs, unless `d` fixes it; then p (and i) are searched for.
    With `max_settling_depth` the smallest gains (least p + i + d) that settle to 1 % within that
    many layers are returned instead of the fastest.
    """
    if kind not in DESIGNS:
        if kind in get_args(Kind):
            raise InputError(f"cannot design {kind} control; choose one of {', '.join(DESIGNS)}")
        raise unknown("design", kind, DESIGNS)
    check_range(kappa_min)
    if kappa_min == -1:
        raise InputError("kappa_min must be > -1: at -1 no gains are stable")
    if d is not None and "D" not in kind:
        raise InputError(f"d is fixed to {d}, but {kind} control has no derivative; use {kind}D")
    derivative = PIDGains(d=d or 0.0, beta=beta).d
    middle = (1 + kappa_min) / 2
    fastest = PIDGains(p=middle, i=middle if "I" in kind else 0.0, d=0.0, beta=beta)
    if derivative:
        fastest = _search(fastest, derivative, kappa_min)
    if max_settling_depth is None:
        return fastest
    return _gentlest(fastest, derivative, kappa_min, max_settling_depth)


def _search(start: PIDGains, derivative: float, kappa_min: float) -> PIDGains:
    """Fastest p (and i) for a fixed d, by simplex search from the design without derivative."""

    def radius(gains: PIDGains) -> float:
        return worst_radius(gains, kappa_min, _GRID)

    found = _simplex(start, derivative, radius)
    if radius(found) >= 1:
        raise InputError(
            f"no stable {found.kind} gains with d = {derivative} on [{kappa_min:g}, 1]; "
            f"d must stay below {(1 + kappa_min) / 2:g}"
        )
    return found


def _gentlest(
    fastest: PIDGains, derivative: float, kappa_min: float, max_settling_depth: int
) -> PIDGains:
    """Smallest gains whose worst radius is at most 1 % ^ (1 / depth)."""
    best_depth = settling_depth(worst_radius(fastest, kappa_min))
    if max_settling_depth < 1 or best_depth is None or best_depth > max_settling_depth:
        raise InputError(
            f"{fastest.kind} control on [{kappa_min:g}, 1] cannot settle within "
            f"{max_settling_depth} layers; the fastest design takes {best_depth}"
        )
    target = SETTLED ** (1 / max_settling_depth)

    def cost(gains: PIDGains) -> float:
        excess = worst_radius(gains, kappa_min, _GRID) - target
        return gains.p + gains.i + (1e3 * excess if excess > 0 else 0.0)

    gentle = _simplex(fastest, derivative, cost)
    # The simplex may stop a hair outside; step back towards the fastest design until inside.
    for share in np.concatenate([[0.0], np.geomspace(1e-9, 1, 60)]):
        gains = PIDGains(
            p=gentle.p + share * (fastest.p - gentle.p),
            i=gentle.i + share * (fastest.i - gentle.i),
            d=derivative,
            beta=fastest.beta,
        )
        if worst_radius(gains, kappa_min) <= target:
            return gains
    return fastest


def _simplex(start: PIDGains, derivative: float, cost: Callable[[PIDGains], float]) -> PIDGains:
    """Nelder-Mead over p, or p and i when the start has an integral; restarted once."""
    has_integral = start.i > 0

    def build(x: NDArray[np.float64]) -> PIDGains:
        p, i = abs(float(x[0])), abs(float(x[1])) if has_integral else 0.0
        return PIDGains(p=p, i=i, d=derivative, beta=start.beta)

    x = np.array([start.p, start.i] if has_integral else [start.p])
    for _ in range(2):
        x = scipy.optimize.minimize(
            lambda x: cost(build(x)),
            x,
            method="Nelder-Mead",
            options={"xatol": 1e-10, "fatol": 1e-12, "maxiter": 2000},
        ).x
    return build(x)
