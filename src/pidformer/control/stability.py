"""Stability of the layer recursion: poles, exact regions, and a report.

For an eigenvalue kappa of the attention kernel, a mode of the recursion v_{l+1} = u_l grows like
the roots of

    z^3 - (1 + kappa - P - I - D) z^2 + (kappa - P - 2 D) z + D        (I > 0)
    z^2 - (kappa - P - D) z - D                                        (I = 0)

Continuous-time stability (the paper's Proposition 2, any positive gains) does not carry over: with
P > 0 it is stable for real kappa in [kappa_min, 1] exactly when 2P + I + 4D < 2 (1 + kappa_min).
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from pidformer.control.gains import Gains, PIDGains
from pidformer.errors import InputError

SETTLED = 0.01
"""A mode counts as settled once it has decayed to this share."""


def _complex(kappa: Any) -> Tensor:
    return torch.as_tensor(kappa, dtype=torch.complex128)


def characteristic_polynomial(kappa: Any, gains: PIDGains) -> Tensor:
    """Coefficients of z^3, z^2, z, 1 as (..., 4), complex128.

    Without integral the accumulator is not part of the loop; its factor (z - 1) is replaced by z,
    a pole at the origin that changes no radius, so that every kind has three poles.
    """
    kappa = _complex(kappa)
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


def poles(kappa: Any, gains: PIDGains) -> Tensor:
    """Roots of the characteristic polynomial, (..., 3), for real or complex kappa (...)."""
    coefficients = characteristic_polynomial(kappa, gains)
    companion = torch.zeros(*coefficients.shape[:-1], 3, 3).to(coefficients)
    companion[..., 0, :] = -coefficients[..., 1:]
    companion[..., 1, 0] = 1
    companion[..., 2, 1] = 1
    return torch.linalg.eigvals(companion)


def spectral_radius(kappa: Any, gains: PIDGains) -> Tensor:
    """Largest |pole|, (...): the factor by which the slowest mode shrinks (or grows) a layer."""
    return poles(kappa, gains).abs().amax(-1)


def closed_loop(
    kernel: Tensor, gains: Gains, *, has_integral: bool = True, has_previous: bool = True
) -> Tensor:
    """One layer of the recursion as a matrix on the state (w_l, S_{l-1}, w_{l-1}), (..., 3N, 3N).

    With w = v - beta v_0, e = -w and S the sum of the errors, the homogeneous part is

        w_{l+1} = (K - P - I - D) w_l + I S_{l-1} + D w_{l-1},    S_l = S_{l-1} - w_l

    Its eigenvalues are the `poles` of the kernel's eigenvalues. A part of the state that no gain
    reads can be left out. `kernel` is (..., N, N); gains may be tensors that broadcast with it.
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


def continuous_poles(kappa: Any, gains: PIDGains) -> Tensor:
    """Exponents of the continuous model: roots of (1 + D) g^2 - (kappa - 1 - P) g + I = 0.

    Shape (..., 2), or (..., 1) without integral, where g = (kappa - 1 - P) / (1 + D).
    """
    kappa = _complex(kappa)
    half_sum = (kappa - 1 - gains.p) / (2 * (1 + gains.d))
    if gains.i == 0:
        return (2 * half_sum)[..., None]
    root = (half_sum.square() - gains.i / (1 + gains.d)).sqrt()
    return torch.stack([half_sum + root, half_sum - root], dim=-1)


def stable_interval(gains: PIDGains) -> tuple[float, float] | None:
    """The open interval of real kappa for which the recursion is stable; None if it is empty.

    Exact, from Jury's criterion:

        P + I/2 + 2 D - 1 < kappa < 1 + P + D I / (1 + D),    D < 1,    I < 4 (1 + D)
    """
    if gains.d >= 1 or gains.i >= 4 * (1 + gains.d):
        return None
    low = gains.p + gains.i / 2 + 2 * gains.d - 1
    high = 1 + gains.p + gains.d * gains.i / (1 + gains.d)
    return (low, high)


def is_stable(gains: PIDGains, kappa_min: float = 0.0, kappa_max: float = 1.0) -> bool:
    """Whether every real kappa in [kappa_min, kappa_max] is stable: exact, in closed form."""
    interval = stable_interval(gains)
    return interval is not None and interval[0] < kappa_min and kappa_max < interval[1]


def schur_cohn(kappa: Any, gains: PIDGains) -> Tensor:
    """Whether all poles lie inside the unit circle, (...) bool, for real or complex kappa.

    Schur and Cohn's reduction: c is stable iff |c_0| < |c_n| and the polynomial of degree n - 1
    with coefficients conj(c_n) c_k - c_0 conj(c_{n-k}), k = 1..n, is. No root is computed.
    """
    lead_first = characteristic_polynomial(kappa, gains)
    stable = torch.ones(lead_first.shape[:-1], dtype=torch.bool, device=lead_first.device)
    for _ in range(lead_first.shape[-1] - 1):
        lead, last = lead_first[..., :1], lead_first[..., -1:]
        stable = stable & (last.abs() < lead.abs())[..., 0]
        lead_first = (lead.conj() * lead_first - last * lead_first.flip(-1).conj())[..., :-1]
    return stable


def gain_margin(gains: PIDGains, kappa_min: float = 0.0) -> float:
    """Factor on p, i and d at which real kappa >= kappa_min turns unstable."""
    load = gains.p + gains.i / 2 + 2 * gains.d
    return (1 + kappa_min) / load if load > 0 else math.inf


def _gain_margin_over(points: Tensor, gains: PIDGains) -> float:
    """The same for a given spectrum, by bisection on Schur and Cohn's criterion."""
    load = gains.p + gains.i / 2 + 2 * gains.d
    if load == 0:
        return math.inf
    low, high = 0.0, 4 / load  # for real kappa <= 1 the boundary is at most 2 / load
    for _ in range(50):
        middle = (low + high) / 2
        if bool(schur_cohn(points, gains.scaled(middle)).all()):
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True)
class StabilityReport:
    """What the gains do to a set of kernel eigenvalues. `print` it, or take `.to_json()`."""

    gains: PIDGains
    stable: bool
    spectrum: str
    """Which kappa were looked at, in words."""
    worst_kappa: complex
    worst_radius: float
    margin: float
    """1 - worst_radius: the distance of the outermost pole to the unit circle."""
    gain_margin: float
    """Factor on p, i and d that reaches the boundary of stability."""
    stable_interval: tuple[float, float] | None
    settling_depth: int | None
    """Layers until the slowest mode has decayed to 1 %; None if it does not."""

    @property
    def verdict(self) -> str:
        """One sentence."""
        where = f"kappa = {_show(self.worst_kappa)}"
        if self.stable:
            return (
                f"stable on {self.spectrum}: the slowest mode shrinks by {self.worst_radius:.4f} "
                f"a layer at {where}, 1 % after {self.settling_depth} layers"
            )
        if self.worst_radius <= 1 + 1e-12:
            return f"marginal on {self.spectrum}: the mode at {where} neither grows nor decays"
        return (
            f"unstable on {self.spectrum}: the mode at {where} grows by {self.worst_radius:.4f} "
            f"a layer; scale the gains by less than {self.gain_margin:.4f}"
        )

    def to_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        kappa = self.worst_kappa
        fields["worst_kappa"] = kappa.real if kappa.imag == 0 else [kappa.real, kappa.imag]
        fields["gain_margin"] = self.gain_margin if math.isfinite(self.gain_margin) else None
        return fields | {"kind": self.gains.kind, "verdict": self.verdict}

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        interval = self.stable_interval
        lines = {
            "gains": f"{self.gains!r} ({self.gains.kind})",
            "verdict": self.verdict,
            "worst radius": f"{self.worst_radius:.4f} at kappa = {_show(self.worst_kappa)}",
            "margin": f"{self.margin:+.4f}",
            "gain margin": f"{self.gain_margin:.4f}",
            "stable for": f"real kappa in ({interval[0]:.4g}, {interval[1]:.4g})"
            if interval
            else "no real kappa",
            "settling depth": f"{self.settling_depth} layers" if self.settling_depth else "never",
        }
        return "\n".join(f"{name:<15} {text}" for name, text in lines.items())


def _show(kappa: complex) -> str:
    kappa = complex(round(kappa.real, 4) + 0.0, round(kappa.imag, 4) + 0.0)
    return f"{kappa.real:g}" if kappa.imag == 0 else f"{kappa:g}"


def settling_depth(radius: float) -> int | None:
    """Layers until radius^depth <= 1 %, at least one; None for radius >= 1."""
    if radius >= 1:
        return None
    return max(1, math.ceil(math.log(SETTLED) / math.log(radius) - 1e-9)) if radius > 0 else 1


def check_range(kappa_min: float, kappa_max: float = 1.0) -> None:
    """Refuse a kappa range that no row-stochastic matrix has."""
    if not -1 <= kappa_min <= kappa_max <= 1:
        raise InputError(
            "kappa range must satisfy -1 <= kappa_min <= kappa_max <= 1 (eigenvalues of a "
            f"row-stochastic matrix), got [{kappa_min}, {kappa_max}]"
        )


def stability_report(
    gains: PIDGains,
    kappa_min: float = 0.0,
    kappa_max: float = 1.0,
    *,
    kappas: Any = None,
) -> StabilityReport:
    """Judge the gains over real kappa in [kappa_min, kappa_max], or over given eigenvalues.

    For the interval the verdict is exact; the worst kappa comes from a grid of 2001 points with
    both ends. For `kappas`, real or complex, every one is looked at.
    """
    if kappas is None:
        check_range(kappa_min, kappa_max)
        spectrum = f"[{kappa_min:g}, {kappa_max:g}]"
        points = torch.linspace(kappa_min, kappa_max, 2001, dtype=torch.float64).to(
            torch.complex128
        )
        stable = is_stable(gains, kappa_min, kappa_max)
        allowed = gain_margin(gains, kappa_min)
    else:
        points = _complex(kappas).flatten()
        if len(points) == 0 or not bool(torch.isfinite(torch.view_as_real(points)).all()):
            raise InputError("kappas must be finite and at least one")
        spectrum = f"{len(points)} eigenvalue" + ("s" if len(points) > 1 else "")
        stable = bool(schur_cohn(points, gains).all())
        allowed = _gain_margin_over(points, gains)
    radii = spectral_radius(points, gains)
    worst = int(radii.argmax())
    radius = float(radii[worst])
    return StabilityReport(
        gains=gains,
        stable=stable,
        spectrum=spectrum,
        worst_kappa=complex(points[worst]),
        worst_radius=radius,
        margin=1 - radius,
        gain_margin=allowed,
        stable_interval=stable_interval(gains),
        settling_depth=settling_depth(radius) if stable else None,
    )
