"""The Controller view as mathematics: from knobs to every number that the pictures show.

Tokens x_1 .. x_N are drawn once; attention compares them with each other,

    K = softmax(sharpness x x^T / 2),      row by row, over j <= i if it is causal,

and the layers move values v_0 by v_{l+1} = K v_l + control_l (`pidformer.control.simulate`). Such
a kernel has real eigenvalues in [0, 1]: it is similar to a positive semidefinite matrix, or
triangular.
"""
# N tokens, L layers

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pidformer.analysis import eigenvalues, mean_cosine, rank_measures
from pidformer.control import (
    StabilityReport,
    design_gains,
    poles,
    simulate,
    spectral_radius,
    stability_report,
)
from pidformer.lab.knobs import Knobs

FEATURES = 4
"""Coordinates that attention compares."""
VALUES = 6
"""Coordinates of the values that the layers move; pictures show the first two."""
POLE_POINTS, RADIUS_POINTS = 41, 161
_VANISHED = 1e-6
"""Tokens this much smaller than at the start have no direction or rank left to measure."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """Every number of the view, as plain lists."""

    knobs: Knobs
    report: StabilityReport
    kernel: list[list[float]]
    eigenvalues: list[float]
    pole_kappas: list[float]
    poles: list[list[complex]]
    radius_kappas: list[float]
    radii: list[float]
    free: np.ndarray
    """Values of the tokens without control, (L + 1, N, 6)."""
    held: np.ndarray
    """The same with control."""
    free_similarity: list[float]
    similarity: list[float]
    free_rank: list[float]
    rank: list[float]
    fastest: tuple[float, float]
    """p and i of the fastest controller with and without integral, as these gains have."""

    @property
    def verdict(self) -> list[str]:
        """What it means, in three sentences."""
        return [_stability_words(self), _token_words(self), _limit_words(self)]


def draws(seed: int, count: int) -> list[float]:
    """`count` standard normal numbers that the exported page draws alike.

    mulberry32 (32-bit integers only, so that JavaScript has the same) and Box and Muller.
    """
    state = (seed * 0x9E3779B1 + 0x6D2B79F5) & 0xFFFFFFFF

    def uniform() -> float:
        nonlocal state
        state = (state + 0x6D2B79F5) & 0xFFFFFFFF
        t = ((state ^ (state >> 15)) * (state | 1)) & 0xFFFFFFFF
        t ^= (t + (((t ^ (t >> 7)) * (t | 61)) & 0xFFFFFFFF)) & 0xFFFFFFFF
        return ((t ^ (t >> 14)) & 0xFFFFFFFF) / 2**32

    found = []
    for _ in range(count):
        radius = math.sqrt(-2 * math.log(1 - uniform()))
        found.append(radius * math.cos(2 * math.pi * uniform()))
    return found


def start(knobs: Knobs) -> tuple[Tensor, Tensor]:
    """What attention compares, (N, 4), and the first values, (N, 6)."""
    count = knobs.tokens * (FEATURES + VALUES)
    rows = torch.tensor(draws(knobs.seed, count), dtype=torch.float64).view(knobs.tokens, -1)
    return rows[:, :FEATURES], rows[:, FEATURES:]


def kernel_of(knobs: Knobs) -> Tensor:
    """The attention matrix, (N, N)."""
    features, _ = start(knobs)
    scores = knobs.sharpness * features @ features.T / 2
    if knobs.causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    return scores.softmax(-1)


def look(knobs: Knobs) -> Look:
    """Compute the whole view."""
    gains, kernel = knobs.gains, kernel_of(knobs)
    _, v0 = start(knobs)
    free, held = (simulate(kernel, v0, g, knobs.depth) for g in (None, gains))
    pole_kappas = torch.linspace(knobs.kappa_min, 1, POLE_POINTS, dtype=torch.float64)
    radius_kappas = torch.linspace(-1, 1, RADIUS_POINTS, dtype=torch.float64)
    free_similarity, free_rank = _alike(free)
    similarity, rank = _alike(held)
    fastest = design_gains("PI" if gains.i else "P", max(knobs.kappa_min, -0.99))
    return Look(
        knobs=knobs,
        report=stability_report(gains, knobs.kappa_min),
        kernel=kernel.tolist(),
        eigenvalues=sorted(eigenvalues(kernel).real.tolist()),
        pole_kappas=pole_kappas.tolist(),
        poles=poles(gains, pole_kappas).tolist(),
        radius_kappas=radius_kappas.tolist(),
        radii=spectral_radius(gains, radius_kappas).tolist(),
        free=free.numpy(),
        held=held.numpy(),
        free_similarity=free_similarity,
        similarity=similarity,
        free_rank=free_rank,
        rank=rank,
        fastest=(fastest.p, fastest.i),
    )


def _alike(values: Tensor) -> tuple[list[float], list[float]]:
    """Mean cosine and effective rank by layer; NaN where the tokens have vanished."""
    sizes = values.flatten(1).norm(dim=-1)
    is_there = (sizes > _VANISHED * sizes[0]) & sizes.isfinite()
    similarity = torch.full_like(sizes, torch.nan)
    rank = torch.full_like(sizes, torch.nan)
    # Directions and ranks have no scale, and a diverging controller would overflow the squares.
    scaled = values[is_there] / sizes[is_there, None, None]
    similarity[is_there] = mean_cosine(scaled)
    rank[is_there] = rank_measures(scaled).effective_rank
    return similarity.tolist(), rank.tolist()


def _stability_words(found: Look) -> str:
    report, knobs = found.report, found.knobs
    where = f"kappa from {knobs.kappa_min:g} to 1"
    if knobs.gains.kind in ("softmax", "D") and report.worst_radius <= 1 + 1e-9:
        return (
            "No control: the constant mode (kappa = 1) neither grows nor decays, all others fade. "
            "What is left is what all tokens share."
        )
    if report.stable:
        return (
            f"Stable for {where}. The slowest mode shrinks to {report.worst_radius:.3f} of its "
            f"size a layer and is down to 1 % after {report.settling_depth} layers; all gains "
            f"could be {report.gain_margin:.2f} times as large."
        )
    if report.worst_radius <= 1 + 1e-9:
        return f"On the edge for {where}: one mode neither grows nor decays."
    way_out = f"Scale the gains by less than {report.gain_margin:.2f}, or design them."
    if knobs.kappa_min == -1:
        way_out = "At kappa_min = -1 no gains are stable: raise it."
    return (
        f"Unstable for {where}: the mode at kappa = {report.worst_kappa.real:.3g} grows by "
        f"{report.worst_radius:.3f} a layer. {way_out}"
    )


def _token_words(found: Look) -> str:
    knobs = found.knobs
    without, held = found.free_similarity[-1], found.similarity[-1]
    text = f"After {knobs.depth} layers the tokens' mean cosine is {_number(without)} without"
    size = float(np.abs(found.held[-1]).max() / np.abs(found.held[0]).max())
    if size > 20:
        return (
            f"{text} control; with it they have grown {size:.3g}-fold under this attention and "
            "mean nothing any more."
        )
    return f"{text} and {_number(held)} with control (1: all alike)."


def _limit_words(found: Look) -> str:
    gains = found.knobs.gains
    if not found.report.stable and found.report.worst_radius > 1 + 1e-9:
        return "The limit that continuous time promises is never reached: a layer is a whole step."
    if gains.i > 0 and gains.p > 0:
        where = "where it began" if gains.beta == 1 else f"at {gains.beta:g} times where it began"
        return f"In the end every token is back {where}."
    if gains.i > 0:
        return "Without p the constant mode swings for ever; add some p."
    if gains.p > 0:
        return "P control alone ends between the reference and what attention would mix."
    return "Nothing brings back what attention has mixed away."


def _number(value: float) -> str:
    return "undefined (they vanished)" if math.isnan(value) else f"{value:.3f}"
