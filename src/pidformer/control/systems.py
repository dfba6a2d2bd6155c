"""Attention over depth as a dynamical system: solutions, limits and the layer recursion.

With a row-stochastic kernel K (N, N), values V (N, D), reference F = beta V_0 and gains P, I, D:

    (1 + D) V' = K V - (1 + P) V + P F + I int_0^t (F - V),    V(0) = V_0

is the continuous model. The layer recursion (`simulate`) is its Euler step of length one, except in
the D term: Definition 1 adds the last difference of the errors, D (e_l - e_{l-1}), where the Euler
step would divide by 1 + D (`control.stability` compares the two). The formulas are the corrected
ones; docs/paper-notes.md lists where the paper's differ.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pidformer.control.feedback import (
    Feedback,
    acting_law,
    as_feedback,
    as_plain_gains,
    with_own,
)
from pidformer.control.gains import GainsLike, PIDGains
from pidformer.control.pid import FirstLayer, PIDController, PIDState
from pidformer.errors import InputError

ROW_SUM_TOLERANCE = 1e-5


def as_square(given: Any, name: str) -> Tensor:
    """A float64 matrix (N, N); `name` is what an error calls it."""
    matrix = torch.as_tensor(given, dtype=torch.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{name} must be square (N, N), got shape {tuple(matrix.shape)}")
    return matrix


def as_kernel(kernel: Any) -> Tensor:
    """A float64 (N, N) row-stochastic matrix, or an InputError that says by how much it is not."""
    matrix = as_square(kernel, "kernel")
    if matrix.shape[0] == 0:
        raise InputError("kernel must have at least one token, got shape (0, 0)")
    entries = matrix.detach()
    if not bool(torch.isfinite(entries).all()):
        raise InputError("kernel must be finite, got NaN or infinite entries")
    lowest = float(entries.min())
    if lowest < -ROW_SUM_TOLERANCE:
        raise InputError(f"kernel must be row-stochastic, got a negative entry {lowest:.3g}")
    sums = entries.sum(-1)
    worst = int((sums - 1).abs().argmax())
    off = float(sums[worst] - 1)
    if abs(off) > ROW_SUM_TOLERANCE:
        raise InputError(
            f"kernel must be row-stochastic, but row {worst} sums to {1 + off:.6g} "
            f"(off by {off:+.3g}, allowed {ROW_SUM_TOLERANCE:g}); apply a softmax over each row"
        )
    return matrix


def as_values(values: Any, tokens: int) -> Tensor:
    """A float64 (N, D) matrix of values, one row per token."""
    matrix = torch.as_tensor(values, dtype=torch.float64)
    if matrix.ndim != 2 or matrix.shape[0] != tokens:
        raise InputError(
            f"values of shape {tuple(matrix.shape)} do not fit a kernel of shape "
            f"{(tokens, tokens)}; expected ({tokens}, D)"
        )
    return matrix


def identity(matrix: Tensor) -> Tensor:
    """The identity of `matrix`'s size, type and device."""
    return torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


def drift_matrix(kernel: Tensor, gains: PIDGains) -> Tensor:
    """B = K - (1 + P) Id."""
    return kernel - (1 + gains.p) * identity(kernel)


def trajectory(kernel: Any, v0: Any, gains: GainsLike | None, times: Any) -> Tensor:
    """Closed-form solution of the continuous model at `times`: (T, N, D).

    Without an integral (Lemmas 1, 4, 5), with B = K - (1 + P) Id:

        V(t) = exp(B t / (1 + D)) (V_0 + P B^-1 F) - P B^-1 F

    With an integral, W = V - F obeys (1 + D) W'' = B W' - I W from W(0) = (beta - 1) V_0 and
    W'(0) = (B V_0 + P F) / (1 + D), solved as a first-order system of twice the size.
    """
    gains = PIDGains() if gains is None else as_plain_gains(gains)
    kernel = as_kernel(kernel)
    v0 = as_values(v0, len(kernel))
    times = torch.as_tensor(times, dtype=torch.float64, device=v0.device)
    if times.ndim != 1:
        raise InputError(f"times must be a vector (T,), got shape {tuple(times.shape)}")
    drift, slow = drift_matrix(kernel, gains), 1 + gains.d
    reference = gains.beta * v0
    times = times[:, None, None]
    if gains.i == 0:
        shift = gains.p * torch.linalg.solve(drift, reference) if gains.p else torch.zeros_like(v0)
        return torch.linalg.matrix_exp(drift * times / slow) @ (v0 + shift) - shift
    eye = identity(kernel)
    system = torch.cat(
        [
            torch.cat([torch.zeros_like(eye), eye], dim=1),
            torch.cat([-gains.i / slow * eye, drift / slow], dim=1),
        ]
    )
    start = torch.cat([v0 - reference, (drift @ v0 + gains.p * reference) / slow])
    return (torch.linalg.matrix_exp(system * times) @ start)[:, : len(kernel)] + reference


def transfer_matrix(kernel: Any, gains: GainsLike | None) -> Tensor:
    """T with steady state T V_0, for the continuous model and for a stable layer recursion.

    No control, or D alone: the projector onto the fixed vectors of K, 1 pi^T when 1 is a simple
    eigenvalue. P, PD: beta P ((1 + P) Id - K)^-1, a non-negative matrix with row sums beta. With an
    integral: beta Id, whatever the kernel.
    """
    gains = PIDGains() if gains is None else as_plain_gains(gains)
    kernel = as_kernel(kernel)
    eye = identity(kernel)
    if gains.i > 0:
        if gains.p == 0:
            raise InputError(
                f"gains of kind {gains.kind} have no steady state: without p the constant mode of "
                "the continuous model oscillates forever; choose p > 0"
            )
        return gains.beta * eye
    if gains.p > 0:
        return torch.linalg.solve(-drift_matrix(kernel, gains), gains.beta * gains.p * eye)
    # A float32 kernel's rows sum to one with an error that would hide an eigenvalue of 1.
    left, sizes, right = torch.linalg.svd(kernel / kernel.sum(-1, keepdim=True) - eye)
    fixed = sizes <= 1e-12 * len(kernel)
    left, right = left[:, fixed], right[fixed].T  # null spaces of (K - Id)^T and of K - Id
    return right @ torch.linalg.solve(left.T @ right, left.T)


def steady_state(kernel: Any, v0: Any, gains: GainsLike | None) -> Tensor:
    """Limit of the values, (N, D); see `transfer_matrix` for the formulas."""
    transfer = transfer_matrix(kernel, gains)
    return transfer @ as_values(v0, len(transfer))


@dataclass(frozen=True)
class Sensitivity:
    """How a perturbation of v_0 reaches the steady state (Proposition 1, kernel held fixed)."""

    matrix: Tensor
    """d(steady state) / d(v_0), (N, N)."""
    gain: float
    """Largest change of any token for a perturbation of size one: the infinity norm of `matrix`."""
    bound: float
    """What Proposition 1 promises: beta with control, 1 without."""
    relative: float
    """gain / beta: beta shrinks signal and perturbation alike, so this is the fair figure."""


def sensitivity(kernel: Any, gains: GainsLike | None) -> Sensitivity:
    """Sensitivity of the steady state to v_0. The bound is attained by a constant perturbation.

    The kernel is held fixed. In a network the input also moves queries and keys, which adds a
    first-order term, bounded by (beta / P) |dK| |V_0|, that the paper leaves out.
    """
    gains = None if gains is None else as_plain_gains(gains)
    matrix = transfer_matrix(kernel, gains)
    gain = float(torch.linalg.matrix_norm(matrix, ord=torch.inf))
    beta = gains.beta if gains is not None and gains.p > 0 else 1.0
    return Sensitivity(matrix=matrix, gain=gain, bound=beta, relative=gain / beta)


def simulate(
    kernel: Any, v0: Any, gains: GainsLike | None, steps: int, first_layer: FirstLayer = "free"
) -> Tensor:
    """The layer recursion v_{l+1} = K v_l + control_l, all states: (steps + 1, N, D).

    `gains` may be what `as_feedback` takes, another discretisation too; a gate and a learned
    reference, which read a network's input, are refused.
    """
    kernel = as_kernel(kernel)
    value = start = as_values(v0, len(kernel))
    law = acting_law(PIDGains() if gains is None else as_feedback(gains))
    if isinstance(law, Feedback) and (law.gate or law.embedded):
        raise InputError(f"{law} reads the input of a network, of which the recursion has none")
    controller = PIDController(law, first_layer)
    state: PIDState | None = None
    values = [value]
    for _ in range(steps):
        control, state = controller(value, state)
        if isinstance(law, Feedback):
            mixed = kernel @ (law.first * start + law.own * value)
            value = with_own(mixed, value, control, law.skip, law.exclude, law.scale)
        else:
            value = kernel @ value + control
        values.append(value)
    return torch.stack(values)
