"""Stability of the layer recursion: poles and exact regions.

With S_l = e_1 + ... + e_l, the paper's continuous model has two discretisations of step one, which
differ in the derivative alone:

    explicit   v_{l+1} - v_l = (K - Id) v_l + P e_l + I S_l + D (e_l - e_{l-1})
    implicit   (1 + D) (v_{l+1} - v_l) = (K - Id) v_l + P e_l + I S_l

Explicit is Definition 1, and what the network computes. Implicit is the Euler step of the paper's
matrix equations, which move D V' to the left-hand side. In a mode with kernel eigenvalue kappa the
error is a sum of powers z^l of the roots of

    explicit   z^3 - (1 + kappa - P - I - D) z^2 + (kappa - P - 2 D) z + D      (I > 0)
               z^2 - (kappa - P - D) z - D                                      (I = 0)
    implicit   (1 + D) (z - 1)^2 + (1 + P - kappa) (z - 1) + I z                (I > 0)
               (1 + D) (z - 1) + 1 + P - kappa                                  (I = 0)

Continuous-time stability (the paper's Proposition 2, any positive gains) does not carry over. With
P > 0, all real kappa in [kappa_min, 1] are stable exactly when

    explicit   2P + I + 4D < 2 (1 + kappa_min)
    implicit   2P + I - 4D < 2 (1 + kappa_min)

A linear relative of PID control (`Feedback`, and with it any length of the step) has the poles of
the PID controller s (P, I, D) at s (own kappa + skip), s its scale.
"""

import math
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor

from pidformer.control.feedback import (
    DiscreteGains,
    Feedback,
    acting_law,
    as_feedback,
    discretised,
    is_linear,
)
from pidformer.control.gains import MAX_GAIN, Derivative, Gains, GainsLike, PIDGains
from pidformer.errors import InputError, check_known

DISC_POINTS = 720
"""Points of the unit circle, -1 and 1 among them, on which the disc is judged."""
ROUNDING = 1e-12
"""What a boundary may be off where another law is written as PID gains."""
SMALL = 1e-3
"""Share of gains that counts as far smaller."""
SETTLED = 0.01
"""A mode counts as settled once it has decayed to this share."""


def in_order(gains: Any, kappa: Any) -> tuple[PIDGains, Tensor]:
    """Gains, then kappa; the earlier order of these arguments is recognised by their types."""
    if isinstance(kappa, PIDGains):
        gains, kappa = kappa, gains
    try:
        return as_feedback(gains), torch.as_tensor(kappa, dtype=torch.complex128)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"the arguments are gains, then kappa (numbers): {error}") from None


def characteristic_polynomial(
    gains: GainsLike, kappa: Any, *, derivative: Derivative = "explicit"
) -> Tensor:
    """Coefficients of z^3, z^2, z, 1 as (..., 4), complex128.

    A state that no gain reads is not part of the loop: without an integral, or with an implicit
    derivative (no previous error), a pole at the origin takes its place. It changes no radius, and
    every kind of control has three poles.
    """
    gains, kappa = in_order(gains, kappa)
    gains, slope, shift = as_pid(gains, derivative)
    kappa = slope * kappa + shift
    one = torch.ones_like(kappa)
    if gains.i > 0:
        rest = (
            gains.p + gains.i + gains.d - 1 - kappa,
            kappa - gains.p - 2 * gains.d,
            gains.d * one,
        )
    else:
        rest = (gains.p + gains.d - kappa, -gains.d * one, 0 * one)
    return torch.stack([one, *rest], dim=-1)


def as_pid(gains: PIDGains, derivative: Derivative = "explicit") -> tuple[PIDGains, float, float]:
    """PID gains (explicit) and a line such that their poles at `slope kappa + shift` are these."""
    gains = acting_law(discretised(gains, derivative=derivative))
    if not isinstance(gains, Feedback):
        return gains, 1.0, 0.0
    if not is_linear(gains):
        raise InputError(
            f"{gains.kind} is not linear in the values, so it has no poles: measured only, by "
            "pidformer analyze of a trained network"
        )
    size = gains.scale
    plain = PIDGains(p=size * gains.p, i=size * gains.i, d=size * gains.d, beta=gains.beta)
    return plain, size * gains.own, size * gains.skip


def poles(gains: GainsLike, kappa: Any, *, derivative: Derivative = "explicit") -> Tensor:
    """Roots of the characteristic polynomial, (..., 3), for real or complex kappa (...)."""
    coefficients = characteristic_polynomial(gains, kappa, derivative=derivative)
    companion = torch.zeros(*coefficients.shape[:-1], 3, 3).to(coefficients)
    companion[..., 0, :] = -coefficients[..., 1:]
    companion[..., 1, 0] = 1
    companion[..., 2, 1] = 1
    return torch.linalg.eigvals(companion)


def spectral_radius(gains: GainsLike, kappa: Any, *, derivative: Derivative = "explicit") -> Tensor:
    """Largest |pole|, (...): the factor by which the slowest mode shrinks or grows per layer."""
    return poles(gains, kappa, derivative=derivative).abs().amax(-1)


def closed_loop(
    kernel: Tensor, gains: Gains, *, has_integral: bool = True, has_previous: bool = True
) -> Tensor:
    """One layer of the network as a matrix on the state (w_l, S_{l-1}, w_{l-1}), (..., 3N, 3N).

    With w = v - beta v_0, e = -w and S the sum of the errors, the homogeneous part is

        w_{l+1} = (K - P - I - D) w_l + I S_{l-1} + D w_{l-1},    S_l = S_{l-1} - w_l

    Its eigenvalues are the (explicit) `poles` at the kernel's eigenvalues. A part of the state that
    no gain reads can be left out. `kernel` is (..., N, N); gains may be tensors that broadcast
    with it.
    """
    eye = torch.eye(kernel.shape[-1], dtype=kernel.dtype, device=kernel.device)
    eye = eye.expand(kernel.shape)
    zero = torch.zeros_like(kernel)
    rows = [[kernel - (gains.p + gains.i + gains.d) * eye]]
    if has_integral:
        rows[0].append(gains.i * eye)
        rows.append([-eye, eye])
    if has_previous:
        rows[0].append(gains.d * eye)
        rows.append([eye])
    wide = [torch.cat(row + [zero] * (len(rows) - len(row)), dim=-1) for row in rows]
    return torch.cat(wide, dim=-2)


def continuous_poles(gains: GainsLike, kappa: Any) -> Tensor:
    """Exponents of the continuous model: roots of (1 + D) g^2 - (kappa - 1 - P) g + I = 0.

    Shape (..., 2), or (..., 1) without an integral, where g = (kappa - 1 - P) / (1 + D). All
    discretisations have the same.
    """
    gains, kappa = in_order(gains, kappa)
    if isinstance(gains, Feedback):
        raise InputError(f"the continuous model is that of PID gains, and {gains} has other terms")
    half_sum = (kappa - 1 - gains.p) / (2 * (1 + gains.d))
    if gains.i == 0:
        return (2 * half_sum)[..., None]
    root = (half_sum.square() - gains.i / (1 + gains.d)).sqrt()
    return torch.stack([half_sum + root, half_sum - root], dim=-1)


def stable_interval(
    gains: GainsLike, *, derivative: Derivative = "explicit"
) -> tuple[float, float] | None:
    """The open interval of real kappa for which the recursion is stable; None if it is empty.

    Exact, by Jury's criterion; each interval is non-empty exactly when I < 4 (1 + D):

        explicit   P + I/2 + 2 D - 1 < kappa < 1 + P + D I / (1 + D),    D < 1
        implicit   P + I/2 - 2 D - 1 < kappa < 1 + P
    """
    gains, slope, shift = as_pid(as_feedback(gains), derivative)
    if gains.i >= 4 * (1 + gains.d) or gains.d >= 1:
        return None
    low, high = load_of(gains) - 1, 1 + gains.p + gains.d * gains.i / (1 + gains.d)
    if slope == 0:  # attention has no part in it
        return (-math.inf, math.inf) if low < shift < high else None
    ends = sorted(((low - shift) / slope, (high - shift) / slope))
    return (ends[0], ends[1])


def load_of(gains: PIDGains, sign: int = 1) -> float:
    """P + I/2 + 2 D if explicit (P + I/2 - 2 D if implicit): what must stay below 1 + kappa."""
    return gains.p + gains.i / 2 + sign * 2 * gains.d


def is_stable(
    gains: GainsLike,
    kappa_min: float = 0.0,
    kappa_max: float = 1.0,
    *,
    derivative: Derivative = "explicit",
) -> bool:
    """Whether every real kappa in [kappa_min, kappa_max] is stable: exact, in closed form."""
    gains = as_feedback(gains)
    interval = stable_interval(gains, derivative=derivative)
    if interval is None:
        return False
    is_plain = type(gains) is PIDGains and derivative == "explicit"
    slack = 0.0 if is_plain else ROUNDING  # a marginal mode is not to look stable
    return interval[0] + slack < kappa_min and kappa_max < interval[1] - slack


def schur_cohn(gains: GainsLike, kappa: Any, *, derivative: Derivative = "explicit") -> Tensor:
    """Whether all poles lie inside the unit circle, (...) bool, for real or complex kappa.

    Schur and Cohn's reduction: c is stable iff |c_0| < |c_n| and the polynomial of degree n - 1
    with coefficients conj(c_n) c_k - c_0 conj(c_{n-k}), k = 1..n, is stable. No root is computed.
    """
    lead_first = characteristic_polynomial(gains, kappa, derivative=derivative)
    stable = torch.ones(lead_first.shape[:-1], dtype=torch.bool, device=lead_first.device)
    for _ in range(lead_first.shape[-1] - 1):
        lead, last = lead_first[..., :1], lead_first[..., -1:]
        stable = stable & (last.abs() < lead.abs())[..., 0]
        lead_first = (lead.conj() * lead_first - last * lead_first.flip(-1).conj())[..., :-1]
    return stable


def gain_margin(
    gains: GainsLike, kappa_min: float = 0.0, *, derivative: Derivative = "explicit"
) -> float:
    """Factor on p, i and d at which some real kappa >= kappa_min turns unstable; inf if none does.

    Without control, or with an implicit D of at least P/2 + I/4, no factor does.
    """
    gains = as_feedback(gains)
    if isinstance(gains, Feedback | DiscreteGains):
        ends = torch.tensor([kappa_min, 1.0], dtype=torch.complex128)  # the worst is at an end
        return gain_margin_over(ends, gains, derivative)
    check_known("derivative", derivative, get_args(Derivative))
    load = load_of(gains, 1 if derivative == "explicit" else -1)
    is_rounding = load <= 1e-12 * load_of(gains)
    return math.inf if is_rounding else (1 + kappa_min) / load


def gain_margin_over(points: Tensor, gains: PIDGains, derivative: Derivative = "explicit") -> float:
    """The same for a given spectrum, by bisection on Schur and Cohn's criterion.

    0 if some mode is outside with far smaller gains too: nothing but the gains holds it.
    """

    def holds(factor: float) -> bool:
        scaled = {name: factor * getattr(gains, name) for name in ("p", "i", "d")}
        found = schur_cohn(replace(gains, **scaled), points, derivative=derivative)
        return bool(found.all())

    largest = max(gains.p, gains.i, gains.d)
    if largest == 0:
        return math.inf
    most = MAX_GAIN * getattr(gains, "step", 1.0) / 2  # the law of a layer holds d / step
    low, high = 0.0, 1.0
    while holds(high):
        low, high = high, 2 * high
        if high * largest > most:
            return math.inf
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low if holds(SMALL * low) else 0.0


def settling_depth(radius: float) -> int | None:
    """Layers until radius^depth <= 1 %, at least one; None unless radius < 1."""
    if not radius < 1:  # nor NaN
        return None
    return max(1, math.ceil(math.log(SETTLED) / math.log(radius) - 1e-9)) if radius > 0 else 1


def as_spectrum(kappas: Any) -> tuple[Tensor, str]:
    """Eigenvalues, complex128 and flat, and what they are in words.

    "disc" is the unit disc, where all eigenvalues of all row-stochastic matrices lie. The largest
    |pole| is a subharmonic function of kappa, so that its points are those of the circle.
    """
    if isinstance(kappas, str):
        check_known("spectrum", kappas, ("disc",))
        angle = torch.linspace(-math.pi, math.pi, DISC_POINTS + 1, dtype=torch.float64)[1:]
        return torch.polar(torch.ones_like(angle), angle), "the unit disc"
    points = torch.as_tensor(kappas, dtype=torch.complex128).flatten()
    if len(points) == 0 or not bool(torch.isfinite(torch.view_as_real(points)).all()):
        raise InputError("kappas must be finite, and at least one must be given")
    return points, f"{len(points)} eigenvalue" + ("s" if len(points) > 1 else "")


def check_range(kappa_min: float, kappa_max: float = 1.0) -> None:
    """Refuse a kappa range that no row-stochastic matrix has."""
    if not -1 <= kappa_min <= kappa_max <= 1:
        raise InputError(
            "kappa range must satisfy -1 <= kappa_min <= kappa_max <= 1 (eigenvalues of a "
            f"row-stochastic matrix), got [{kappa_min}, {kappa_max}]"
        )
