"""Controller design: the gains whose slowest mode decays fastest."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from pidformer.control.feedback import DiscreteGains, discretised
from pidformer.control.gains import Derivative, GainsLike, Kind, PIDGains
from pidformer.control.stability import (
    SETTLED,
    as_spectrum,
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
    kappas: Any = None,
) -> float:
    """Largest spectral radius over real kappa in [kappa_min, 1], or over `kappas`."""
    if kappas is None:
        kappas = torch.linspace(kappa_min, 1, points, dtype=torch.float64)
    return float(spectral_radius(gains, kappas, derivative=derivative).max())


def design_gains(
    kind: str,
    kappa_min: float = 0.0,
    *,
    beta: float = 1.0,
    d: float | None = None,
    max_settling_depth: int | None = None,
    kappas: Any = None,
    derivative: Derivative = "explicit",
    step: float = 1.0,
) -> PIDGains:
    """Gains of the network that minimise the worst spectral radius over kappa in [kappa_min, 1].

    Closed forms for real kappa, with m = (1 + kappa_min) / 2 and s = h the step, or h / (1 + d)
    with an implicit derivative:

        P:  p = m + 1/s - 1,            radius s (1 - kappa_min) / 2
        PI: p = m + 1/s - 1, i = p / h, radius its square root

    An explicit D only narrows the stable region. So among d >= 0 the best PD is P and the best PID
    is PI, and these are returned unless `d` is fixed; then p (and i) are found by search. An
    implicit D has no best, for a larger one is always faster: it is 0 unless fixed.

    `kappas` asks for the eigenvalues that a network really has (attention that was trained reaches
    Re kappa = -1), or with "disc" for all that any attention can have; the gains are then found by
    search from the closed form. With a step of 1 and no implicit D none are stable at -1.

    With `max_settling_depth`, returns not the fastest gains but the smallest (least p + i + d) that
    settle to 1 % within that many layers.
    """
    if kind not in DESIGNS:
        if kind in get_args(Kind):
            raise InputError(f"cannot design {kind} control; choose one of {', '.join(DESIGNS)}")
        raise unknown("design", kind, DESIGNS)
    form = DiscreteGains(derivative=derivative, step=step, d=d or 0.0, beta=beta)
    size = form.law.scale
    check_range(kappa_min)
    points, where = None, f"[{kappa_min:g}, 1]"
    if kappas is not None:
        points, where = as_spectrum(kappas)
        kappa_min = max(-1.0, min(1.0, float(points.real.min())))
    if kappa_min == -1 and size == 1:
        raise InputError(
            "kappa_min must be > -1: at -1 no gains are stable, unless the step is shorter "
            "(step=0.5) or d > 0 with an implicit derivative"
        )
    if d is not None and "D" not in kind:
        raise InputError(f"d is fixed to {d}, but {kind} control has no derivative; use {kind}D")
    middle = (1 + kappa_min) / 2 + (1 / size - 1)
    fastest = replace(form, p=middle, i=middle / form.step if "I" in kind else 0.0)
    if points is not None or (form.d and derivative == "explicit"):
        fastest = _search(fastest, kappa_min, points, where)
    if max_settling_depth is not None:
        fastest = _gentlest(fastest, kappa_min, points, where, max_settling_depth)
    plain = PIDGains(p=fastest.p, i=fastest.i, d=fastest.d, beta=beta)
    return discretised(plain, derivative=derivative, step=step)


def _search(
    start: DiscreteGains, kappa_min: float, points: Tensor | None, where: str
) -> DiscreteGains:
    """Fastest p (and i), by simplex search from the design for real kappa without an explicit D."""

    def radius(gains: DiscreteGains) -> float:
        return worst_radius(gains, kappa_min, _GRID, kappas=points)

    found = _simplex(start, radius)
    if radius(found) >= 1:
        hint = f"d must stay below {(1 + kappa_min) / 2:g}" if start.d else "take a shorter step"
        with_d = f" with d = {start.d}" if start.d else ""
        raise InputError(f"no stable {found.kind} gains{with_d} on {where}; {hint}")
    return found


def _gentlest(
    fastest: DiscreteGains, kappa_min: float, points: Tensor | None, where: str, most: int
) -> DiscreteGains:
    """Smallest gains whose worst radius is at most 1 % ^ (1 / depth)."""
    best_depth = settling_depth(worst_radius(fastest, kappa_min, kappas=points))
    if best_depth is None or best_depth > most:
        raise InputError(
            f"{fastest.kind} control on {where} cannot settle within "
            f"{most} layers; the fastest design takes {best_depth}"
        )
    target = SETTLED ** (1 / most)

    def cost(gains: DiscreteGains) -> float:
        excess = worst_radius(gains, kappa_min, _GRID, kappas=points) - target
        return gains.p + gains.i + (1e3 * excess if excess > 0 else 0.0)

    gentle = _simplex(fastest, cost)
    # The simplex may stop a hair outside; step back towards the fastest design until inside.
    for share in np.concatenate([[0.0], np.geomspace(1e-9, 1, 60)]):
        p = gentle.p + share * (fastest.p - gentle.p)
        gains = replace(gentle, p=p, i=gentle.i + share * (fastest.i - gentle.i))
        if worst_radius(gains, kappa_min, kappas=points) <= target:
            return gains
    return fastest


def _simplex(start: DiscreteGains, cost: Callable[[DiscreteGains], float]) -> DiscreteGains:
    """Nelder-Mead over p, and over i too if the start has an integral."""
    has_integral = start.i > 0

    def build(x: NDArray[np.float64]) -> DiscreteGains:
        p, i = abs(float(x[0])), abs(float(x[1])) if has_integral else 0.0
        return replace(start, p=p, i=i)

    found = scipy.optimize.minimize(
        lambda x: cost(build(x)),
        np.array([start.p, start.i] if has_integral else [start.p]),
        method="Nelder-Mead",
        options={"xatol": 1e-10, "fatol": 1e-12, "maxiter": 2000},
    )
    return build(found.x)
