"""What the Controller view must show, computed by `pidformer.control`: the oracle of control.js."""
# N tokens, L layers

import math
from dataclasses import dataclass

import numpy as np
import torch

from pidformer.analysis import eigenvalues, mean_cosine, rank_measures
from pidformer.control import StabilityReport, simulate, stability_report
from pidformer.control.feedback import acting_law
from pidformer.lab.controller import kernel_of, start
from pidformer.lab.knobs import Knobs

_VANISHED = 1e-6
"""Tokens this much smaller than at the start have no direction or rank left to measure."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """Every number of the view, as plain lists."""

    knobs: Knobs
    report: StabilityReport
    eigenvalues: list[float]
    free: np.ndarray
    """Values of the tokens without control, (L + 1, N, 6)."""
    held: np.ndarray
    """The same with control."""
    free_similarity: list[float]
    similarity: list[float]
    free_rank: list[float]
    rank: list[float]

    @property
    def verdict(self) -> list[str]:
        """What it means, in three sentences."""
        return [_stability_words(self), _token_words(self), _limit_words(self)]


def look(knobs: Knobs) -> Look:
    """Compute the whole view."""
    gains, kernel = knobs.gains, kernel_of(knobs)
    _, v0 = start(knobs)
    free, held = (simulate(kernel, v0, g, knobs.depth) for g in (None, gains))
    free_similarity, free_rank = _alike(free)
    similarity, rank = _alike(held)
    return Look(
        knobs=knobs,
        report=stability_report(gains, knobs.kappa_min),
        eigenvalues=sorted(eigenvalues(kernel).real.tolist()),
        free=free.numpy(),
        held=held.numpy(),
        free_similarity=free_similarity,
        similarity=similarity,
        free_rank=free_rank,
        rank=rank,
    )


def _alike(values):
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
        is_bounded = math.isfinite(report.gain_margin)
        most = f"{report.gain_margin:.2f}" if is_bounded else "any number of"
        return (
            f"Stable for {where}. The slowest mode shrinks to {report.worst_radius:.3f} of its "
            f"size per layer and is down to 1 % after {report.settling_depth} layers; all gains "
            f"could be {most} times as large."
        )
    if report.worst_radius <= 1 + 1e-9:
        return f"On the edge for {where}: one mode neither grows nor decays."
    way_out = f"Scale the gains by less than {report.gain_margin:.2f}, or design them."
    if knobs.kappa_min == -1 and getattr(acting_law(knobs.gains), "scale", 1) == 1:
        way_out = "At kappa_min = -1 no gains are stable: raise it."
    return (
        f"Unstable for {where}: the mode at kappa = {report.worst_kappa.real:.3g} grows "
        f"{report.worst_radius:.3f}x per layer. {way_out}"
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
