"""What a controller's gains do to a set of kernel eigenvalues, in numbers and in one sentence."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from pidformer.control.feedback import DiscreteGains, discretised
from pidformer.control.gains import Derivative, GainsLike, PIDGains
from pidformer.control.stability import (
    ROUNDING,
    as_spectrum,
    check_range,
    gain_margin,
    gain_margin_over,
    is_stable,
    schur_cohn,
    settling_depth,
    spectral_radius,
    stable_interval,
)


@dataclass(frozen=True)
class StabilityReport:
    """What the gains do to a set of kernel eigenvalues. `print` it, or take `.to_json()`."""

    gains: PIDGains
    derivative: Derivative
    stable: bool
    spectrum: str
    """The kappa that were examined, in words."""
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
        factor = f"{_show_factor(self.worst_radius)} per layer"
        if self.stable:
            return (
                f"stable on {self.spectrum}: the slowest mode, at {where}, shrinks to {factor} "
                f"and is down to 1 % after {self._settled}"
            )
        if self.worst_radius <= 1 + 1e-12:
            return f"marginal on {self.spectrum}: the mode at {where} neither grows nor decays"
        said = f"unstable on {self.spectrum}: the mode at {where} grows {factor}"
        if self.gain_margin == math.inf:
            return f"{said}; no factor on p, i and d changes that"
        if self.gain_margin == 0:
            return f"{said}; smaller p, i and d leave one outside too"
        return f"{said}; scale the gains by less than {self.gain_margin:.4f}"

    @property
    def _settled(self) -> str:
        depth = self.settling_depth
        return "never" if depth is None else "1 layer" if depth == 1 else f"{depth} layers"

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
        derivative = f", {self.derivative} D" if self.gains.d else ""
        if isinstance(self.gains, DiscreteGains) and self.gains.step != 1:
            derivative += f", step {self.gains.step:g}"
        lines = {
            "gains": f"{self.gains!r} ({self.gains.kind}{derivative})",
            "verdict": self.verdict,
            "worst radius": f"{self.worst_radius:.4f} at kappa = {_show(self.worst_kappa)}",
            "margin": f"{self.margin:+.4f}",
            "gain margin": f"{self.gain_margin:.4f}",
            "stable for": f"real kappa in ({interval[0]:.4g}, {interval[1]:.4g})"
            if interval
            else "no real kappa",
            "settling depth": self._settled,
        }
        return "\n".join(f"{name:<15} {text}" for name, text in lines.items())


def _show(kappa: complex) -> str:
    kappa = complex(round(kappa.real, 4) + 0.0, round(kappa.imag, 4) + 0.0)
    return f"{kappa.real:g}" if kappa.imag == 0 else f"{kappa:g}"


def _show_factor(radius: float) -> str:
    """As many digits as the factor needs to differ from 1 and from 0: 1.16x, 1.0033x, 0.946x."""
    distance = max(1e-12, min(abs(radius - 1), radius))
    return f"{radius:.{max(2, 1 + math.ceil(-math.log10(distance)))}f}x"


def stability_report(
    gains: GainsLike,
    kappa_min: float = 0.0,
    kappa_max: float = 1.0,
    *,
    kappas: Any = None,
    derivative: Derivative = "explicit",
) -> StabilityReport:
    """Judge the gains over real kappa in [kappa_min, kappa_max], or over given eigenvalues.

    For the interval the verdict is exact; the worst kappa comes from a grid of 2001 points that
    includes both ends. Every one of `kappas`, real or complex, is examined; "disc" stands for the
    unit disc, where all eigenvalues of all attention lie (`as_spectrum`).
    """
    gains = discretised(gains, derivative=derivative)
    if kappas is None:
        check_range(kappa_min, kappa_max)
        spectrum = f"[{kappa_min:g}, {kappa_max:g}]"
        points = torch.linspace(kappa_min, kappa_max, 2001, dtype=torch.float64)
        stable = is_stable(gains, kappa_min, kappa_max)
        allowed = gain_margin(gains, kappa_min)
    else:
        points, spectrum = as_spectrum(kappas)
        stable = bool(schur_cohn(gains, points).all())
        allowed = gain_margin_over(points, gains)
    radii = spectral_radius(gains, points)
    radius = float(radii.max())
    tied = radii > radius - ROUNDING  # the one nearest to the real axis is shown
    off_axis = points.to(torch.complex128).imag.abs()
    worst = int(torch.where(tied, off_axis, torch.inf).argmin())
    if kappas is not None:
        stable = stable and radius < 1 - ROUNDING  # eigenvalues are rounded, that of 1 too
    return StabilityReport(
        gains=gains,
        derivative=gains.derivative if isinstance(gains, DiscreteGains) else "explicit",
        stable=stable,
        spectrum=spectrum,
        worst_kappa=complex(points[worst]),
        worst_radius=radius,
        margin=1 - radius,
        gain_margin=allowed,
        stable_interval=stable_interval(gains),
        settling_depth=settling_depth(radius) if stable else None,
    )
