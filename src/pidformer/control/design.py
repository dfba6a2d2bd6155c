"""Controller design: the gains whose slowest mode decays fastest."""

from collections.abc import Callable
from typing import get_args

import numpy as np
import scipy
import torch
from numpy.typing import NDArray

from pidformer.control.gains import GainsLike, Kind, PIDGains
from pidformer.control.stability import (
    SETTLED,
    Derivative,
    check_range,
    settling_depth,
    spectral_radius,
)
from pidformer.errors import InputError, unknown

DESIGNS = ("P", "PD", "PI", "PID")
_GRID = 129
"""Points of [kappa_min, 1] that the search examines, both ends included: the worst lies there.
`worst_radius` on a finer grid judges the result."""


def worst_radius(
    gains: GainsLike,
    kappa_min: float = 0.0,
    points: int = 2001,
    *,
    derivative: Derivative = "explicit",
) -> float:
    """Largest spectral radius over real kappa in [kappa_min, 1]."""
    kappas = torch.linspace(kappa_min, 1, points, dtype=torch.float64)
    return float(spectral_radius(gains, kappas, derivative=derivative).max())


def design_gains(
    kind: str,
    kappa_min: float = 0.0,
    *,
    beta: float = 1.0,
    d: float | None = None,
    max_settling_depth: int | None = None,
) -> PIDGains:
    """Gains of the network that minimise the worst spectral radius over kappa in [kappa_min, 1].

    Closed forms for real kappa, with m = (1 + kappa_min) / 2:

        P:  p = m,      radius (1 - kappa_min) / 2
        PI: p = i = m,  radius sqrt((1 - kappa_min) / 2)

    The network's derivative is explicit, and an explicit D only narrows the stable region. So among
    d >= 0 the best PD is P and the best PID is PI, and these are returned unless `d` is fixed; then
    p (and i) are found by search. (An implicit D has no best: with p, and i, larger by d as well,
    the radii above become (1 - kappa_min) / (2 (1 + d)) and its square root.)

    With `max_settling_depth`, returns not the fastest gains but the smallest (least p + i + d) that
    settle to 1 % within that many layers.
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
    fixed = PIDGains(d=d or 0.0, beta=beta).d
    middle = (1 + kappa_min) / 2
    fastest = PIDGains(p=middle, i=middle if "I" in kind else 0.0, d=0.0, beta=beta)
    if fixed:
        fastest = _search(fastest, fixed, kappa_min)
    if max_settling_depth is None:
        return fastest
    return _gentlest(fastest, fixed, kappa_min, max_settling_depth)


def _search(start: PIDGains, d: float, kappa_min: float) -> PIDGains:
    """Fastest p (and i) for a fixed d, by simplex search from the design with d = 0."""

    def radius(gains: PIDGains) -> float:
        return worst_radius(gains, kappa_min, _GRID)

    found = _simplex(start, d, radius)
    if radius(found) >= 1:
        raise InputError(
            f"no stable {found.kind} gains with d = {d} on [{kappa_min:g}, 1]; "
            f"d must stay below {(1 + kappa_min) / 2:g}"
        )
    return found


def _gentlest(fastest: PIDGains, d: float, kappa_min: float, max_settling_depth: int) -> PIDGains:
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

    gentle = _simplex(fastest, d, cost)
    # The simplex may stop a hair outside; step back towards the fastest design until inside.
    for share in np.concatenate([[0.0], np.geomspace(1e-9, 1, 60)]):
        gains = PIDGains(
            p=gentle.p + share * (fastest.p - gentle.p),
            i=gentle.i + share * (fastest.i - gentle.i),
            d=d,
            beta=fastest.beta,
        )
        if worst_radius(gains, kappa_min) <= target:
            return gains
    return fastest


def _simplex(start: PIDGains, d: float, cost: Callable[[PIDGains], float]) -> PIDGains:
    """Nelder-Mead over p, and over i too if the start has an integral; restarted once."""
    has_integral = start.i > 0

    def build(x: NDArray[np.float64]) -> PIDGains:
        p, i = abs(float(x[0])), abs(float(x[1])) if has_integral else 0.0
        return PIDGains(p=p, i=i, d=d, beta=start.beta)

    x = np.array([start.p, start.i] if has_integral else [start.p])
    for _ in range(2):
        x = scipy.optimize.minimize(
            lambda x: cost(build(x)),
            x,
            method="Nelder-Mead",
            options={"xatol": 1e-10, "fatol": 1e-12, "maxiter": 2000},
        ).x
    return build(x)
