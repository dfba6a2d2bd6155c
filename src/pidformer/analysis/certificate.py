"""Stability certificates of trained models: their gains against the spectra they really have."""
# B images, H heads, N tokens, L layers

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pidformer import ranks
from pidformer.analysis.controllers import Controllers, read_controllers
from pidformer.analysis.growth import Growth, transient_growth
from pidformer.analysis.inspection import Model, check_inputs
from pidformer.analysis.response import Response, input_response
from pidformer.analysis.similarity import Advance
from pidformer.analysis.spectrum import AttentionSpectrum, attention_matrices, eigenvalues
from pidformer.control.design import DESIGNS, design_gains
from pidformer.control.feedback import DiscreteGains, Feedback
from pidformer.control.gains import PIDGains
from pidformer.control.stability import (
    ROUNDING,
    gain_margin_over,
    schur_cohn,
    settling_depth,
    spectral_radius,
)
from pidformer.data.arguments import check_counts
from pidformer.errors import InputError

LEAVES_OUT = (
    "The recursion behind it is v_{l+1} = A_l v_l + control (of other methods, theirs). It leaves "
    "out LayerNorm, the value and output projections, the residual and the MLP. Radii take each "
    "layer's A as if it were repeated for ever; growth takes the layers' own matrices in turn. A "
    "network can stay bounded where the recursion is not, and the other way round."
)
SMALLEST_KAPPA = -0.999
"""Where the design of gains stops: at -1 none are stable."""
MOST = 0.99
"""Share of the measured modes that the gentler of the two suggestions holds."""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What the gains of a model do under the attention it really has. `print` it."""

    controllers: Controllers
    spectrum: AttentionSpectrum
    radius: Tensor
    """Largest |pole| over the sample, (L, H); NaN where no control acts."""
    share_outside: Tensor
    """Share of the measured kappa with a pole outside the unit circle, (L, H); NaN as above."""
    worst: tuple[int, int, complex] | None
    """Layer and head (from 0) and kappa of the largest radius."""
    gain_margin: float | None
    """Factor on p, i and d at which the first measured mode turns unstable; None if they vary."""
    growth: Growth
    response: Response | str
    """A text says why it cannot be measured."""
    suggested: PIDGains | None
    """Gains that hold every measured mode inside the unit circle."""
    suggested_radius: float | None
    """The largest |pole| they leave."""
    suggested_for_most: PIDGains | None
    """Gains that hold 99 % of the measured modes: a few extreme ones ask for very small gains."""

    @property
    def is_controlled(self) -> bool:
        return bool(self.controllers.acting)

    @property
    def worst_radius(self) -> float | None:
        return float(self.radius.nan_to_num(nan=-1).max()) if self.is_controlled else None

    @property
    def stable(self) -> bool | None:
        """Whether every measured mode lies inside the unit circle; None without control."""
        return bool(self.share_outside.nansum() == 0) if self.is_controlled else None

    @property
    def outside(self) -> float | None:
        """Share of measured modes outside, over all controlled layers."""
        return float(self.share_outside.nanmean()) if self.is_controlled else None

    @property
    def settling_depth(self) -> int | None:
        """Layers until the slowest mode has decayed to 1 %."""
        radius = self.worst_radius
        return settling_depth(radius) if radius is not None and self.stable else None

    @property
    def peak_growth(self) -> float:
        """Largest |T_l| over depth, images and heads: what v_0's perturbation grows to at most."""
        return float(self.growth.values.max())

    @property
    def final_growth(self) -> float:
        """Largest |T_l| up to the values of the last layer."""
        values = self.growth.values
        return float(values[..., -2].max()) if values.shape[-1] > 1 else 1.0

    @property
    def verdict(self) -> str:
        """One or two sentences."""
        depth = len(self.spectrum.kappas)
        if not self.is_controlled:
            second = self.spectrum.summary().second
            return (
                "no control: nothing holds the tokens apart; every mode but the constant one "
                f"shrinks to {second:.3f} of its size per layer, or faster"
            )
        assert self.worst is not None and self.worst_radius is not None
        layer, head, kappa = self.worst
        where = f"layer {layer + 1}, head {head + 1}, kappa = {_show(kappa)}"
        if self.stable:
            return (
                f"stable: every measured mode lies inside the unit circle, the slowest shrinks to "
                f"{self.worst_radius:.3f} of its size per layer ({where}), 1 % after "
                f"{self.settling_depth} layers; over {depth} layers a perturbation of v_0 grows "
                f"at most to {self.peak_growth:.2f}"
            )
        return (
            f"unstable in the idealised recursion: {100 * (self.outside or 0):.2g} % of the "
            f"measured modes lie outside the unit circle, the worst grows "
            f"{self.worst_radius:.3f}x per layer ({where}); over {depth} layers a perturbation of "
            f"v_0 grows at most to {self.peak_growth:.2f}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data: numbers, and lists by layer."""
        shared = self.controllers.shared
        found: dict[str, Any] = {
            "verdict": self.verdict,
            "gains": shared.to_dict() if shared else [g.to_dict() for g in self.controllers.acting],
            "images": self.spectrum.images,
            "stable": self.stable,
            "worst_radius": self.worst_radius,
            "share_outside": self.outside,
            "gain_margin": _finite(self.gain_margin),
            "settling_depth": self.settling_depth,
            "kappa": self.spectrum.summary().to_dict(),
            "radius": _rows(self.radius),
            "share_outside_by_layer": _rows(self.share_outside),
            "growth_values": _over_sample(self.growth.values),
            "growth_state": _over_sample(self.growth.state),
            "growth_bound": _over_sample(self.growth.bound),
            "suggested": self.suggested.to_dict() if self.suggested else None,
            "suggested_radius": self.suggested_radius,
            "suggested_for_most": (
                self.suggested_for_most.to_dict() if self.suggested_for_most else None
            ),
        }
        if self.worst is not None:
            layer, head, kappa = self.worst
            found["worst"] = {"layer": layer, "head": head, "kappa": [kappa.real, kappa.imag]}
        if isinstance(self.response, Response):
            found["response"] = {
                f"{name}_{word}": float(number)
                for name, values in self.response._asdict().items()
                for word, number in (("mean", values.mean()), ("max", values.max()))
            }
        return found

    def __str__(self) -> str:
        return f"{self.describe()}\n{'leaves out':<15} {LEAVES_OUT}"

    def describe(self) -> str:
        """All but what the recursion leaves out, a line each."""
        kappa = self.spectrum.summary()
        layers = [self.spectrum.summary(depth) for depth in range(len(self.spectrum.kappas))]
        lines = {
            "verdict": self.verdict,
            "gains": self._gains_in_words(),
            "kappa": f"Re from {kappa.min_real:+.4f} to 1, |Im| up to {kappa.max_imag:.4f}, "
            f"{100 * kappa.share_negative:.1f} % below 0, second largest |kappa| "
            f"{kappa.second:.4f} ({self.spectrum.images} inputs)",
            "min Re kappa": "by layer " + " ".join(f"{layer.min_real:+.2f}" for layer in layers),
        }
        if self.is_controlled:
            radii = self.radius.nan_to_num(nan=-1).amax(-1).tolist()
            lines["radius"] = "by layer " + " ".join(f"{r:.2f}" if r >= 0 else "-" for r in radii)
            margin = self.gain_margin
            lines["gain margin"] = "gains differ by layer" if margin is None else f"{margin:.4f}"
            settling = self.settling_depth
            lines["settling depth"] = f"{settling} layers" if settling else "never"
            lines["growth"] = (
                f"of v_0 {self.peak_growth:.3g} (median of the last layer "
                f"{float(self.growth.values[..., -1].median()):.3g}), of the state "
                f"{_largest(self.growth.state):.3g}, layers' norms allow "
                f"{_largest(self.growth.bound):.3g}"
            )
        lines["sensitivity"] = self._response_in_words()
        lines["stable gains"] = self._suggestion_in_words()
        return "\n".join(f"{name:<15} {text}" for name, text in lines.items())

    def _response_in_words(self) -> str:
        if isinstance(self.response, str):
            return f"not measured: {self.response}"
        gain, limit, shared = self.response.value_gain, "", self.controllers.shared
        if shared and self.stable and not isinstance(shared, Feedback):
            limit = f", its limit {shared.beta:.3g}"  # what is kept of v_0's perturbation
        return (
            f"measured, first to last values: {float(gain.mean()):.3g} on average, "
            f"{float(gain.max()):.3g} at most; the recursion allows {self.final_growth:.3g}{limit}"
        )

    def _gains_in_words(self) -> str:
        shared = self.controllers.shared
        if not self.is_controlled:
            return "none (softmax attention)"
        if shared is not None:
            return f"{shared!r} ({shared.kind})"
        plain = Feedback().to_dict()
        ranges = (
            f"{name} {min(values):.3g} to {max(values):.3g}"
            for name, usual in plain.items()
            for values in [{getattr(gains, name, usual) for gains in self.controllers.acting}]
            if values != {usual}
        )
        return "by layer and head: " + ", ".join(ranges)

    def _suggestion_in_words(self) -> str:
        most, every = self.suggested_for_most, self.suggested
        if most is None:
            return "none found: kappa reaches too close to the unit circle"
        if every is None:
            return f"{_short(most)} for {MOST:.0%} of the measured modes; none found for all"
        return (
            f"{_short(every)} for all measured modes (radius {self.suggested_radius:.3f}); "
            f"{_short(most)} for {MOST:.0%} of them"
        )


def certify(
    model: Model,
    images: Tensor,
    gains: Any = None,
    *,
    batch_size: int = 8,
    growth_images: int = 32,
    directions: int = 4,
    seed: int = 0,
    on_progress: Advance | None = None,
) -> Certificate:
    """Join a model's gains with the attention spectra it has on `images`.

    Every eigenvalue kappa of every attention matrix is put into the closed loop of its layer and
    head (`control.poles`). `gains` asks what other gains would do under the same attention; by
    default they are the model's own, and a softmax model gets its spectra and the gains that would
    be stable for it. Growth and response are measured on `growth_images` of the images, the
    response (central differences in float64) along `directions` random directions per image.
    """
    check_inputs(model, images, batch_size)
    check_counts(growth_images=growth_images, directions=directions)
    few = torch.linspace(0, len(images) - 1, min(growth_images, len(images))).long()

    def look(part: Tensor, start: int) -> tuple[list[Tensor], Growth | None]:
        wanted = few[(few >= start) & (few < start + batch_size)] - start
        spectra: list[Tensor] = []
        kept: list[Tensor] = []
        for matrix in attention_matrices(model, part, dtype=torch.float64):
            spectra.append(eigenvalues(matrix))
            if len(wanted):
                kept.append(matrix[wanted])
        controllers = read_controllers(model, gains, [layer.shape[1] for layer in spectra])
        if on_progress is not None:
            on_progress(len(part))
        if not kept:
            return spectra, None
        return spectra, Growth(*(norms.cpu() for norms in transient_growth(kept, controllers)))

    parts = ranks.spread(images.split(batch_size), look)
    layers = zip(*(spectra for spectra, _ in parts), strict=True)
    spectrum = AttentionSpectrum(kappas=tuple(torch.cat(layer) for layer in layers))
    growths = zip(*(growth for _, growth in parts if growth is not None), strict=True)
    growth = Growth(*(torch.cat(values) for values in growths))
    heads = [layer.shape[1] for layer in spectrum.kappas]
    controllers = read_controllers(model, gains, heads)
    radius, outside, worst = _closed_loop_radii(spectrum, controllers)
    shared = controllers.shared
    kappas = _in_the_loop(spectrum, controllers)
    suggested = suggest_gains(kappas, controllers)
    return Certificate(
        controllers=controllers,
        spectrum=spectrum,
        radius=radius,
        share_outside=outside,
        worst=worst,
        gain_margin=gain_margin_over(kappas, shared) if shared else None,
        growth=growth,
        response=_response(model, images[few], directions, seed),
        suggested=suggested,
        suggested_radius=float(spectral_radius(suggested, kappas).max()) if suggested else None,
        suggested_for_most=suggest_gains(kappas, controllers, share=MOST),
    )


def _closed_loop_radii(
    spectrum: AttentionSpectrum, controllers: Controllers
) -> tuple[Tensor, Tensor, tuple[int, int, complex] | None]:
    """Worst radius and share of modes outside, (L, H) each, and where the worst is."""
    heads = max(layer.shape[1] for layer in spectrum.kappas)
    radius = torch.full((len(spectrum.kappas), heads), torch.nan, dtype=torch.float64)
    outside = radius.clone()
    worst: tuple[int, int, complex] | None = None
    highest = -math.inf
    for depth, kappas in enumerate(spectrum.kappas):
        if not controllers.acts(depth):
            continue
        for head, gains in enumerate(controllers.layers[depth]):
            points = kappas[:, head].flatten()
            radii = spectral_radius(gains, points)
            top = int(radii.argmax())
            radius[depth, head] = radii[top]
            outside[depth, head] = (radii > 1 - ROUNDING).double().mean()
            if float(radii[top]) > highest:
                highest, worst = float(radii[top]), (depth, head, complex(points[top]))
    return radius, outside, worst


def _in_the_loop(spectrum: AttentionSpectrum, controllers: Controllers) -> Tensor:
    """Eigenvalues of the controlled layers; without any, of those that would be controlled."""
    depths = [depth for depth in range(len(spectrum.kappas)) if controllers.acts(depth)]
    if not depths:
        is_free = controllers.first_layer == "free" and len(spectrum.kappas) > 1
        depths = list(range(is_free, len(spectrum.kappas)))
    return torch.cat([spectrum.kappas[depth].flatten() for depth in depths])


def suggest_gains(
    kappas: Tensor, controllers: Controllers | None = None, *, share: float = 1.0
) -> PIDGains | None:
    """Gains that hold a `share` of the given eigenvalues; None if none are found.

    The fastest design for real kappa down to the smallest measured real part (its quantile for a
    share below one), of the kind the model has (PI for a softmax model), scaled back as far as
    complex kappa ask for.
    """
    acting = controllers.acting if controllers else []
    own = acting[0] if acting else PIDGains()
    kind = own.kind if own.kind in DESIGNS else "PI"
    lowest = float(np.quantile(kappas.real.numpy(), 1 - share))
    steps: Any = {}
    if isinstance(own, DiscreteGains):
        steps = {"derivative": own.derivative, "step": own.step}
        if own.derivative == "implicit" and own.d:
            steps["d"] = own.d
    gains = design_gains(kind, max(SMALLEST_KAPPA, min(1.0, lowest)), beta=own.beta, **steps)
    for factor in (1.0, 0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05):
        scaled = gains.scaled(factor)
        if float(schur_cohn(scaled, kappas).double().mean()) >= share:
            return scaled
    return None


def _response(model: Model, images: Tensor, directions: int, seed: int) -> Response | str:
    try:
        return input_response(model, images, directions=directions, seed=seed)
    except InputError as error:
        return str(error)


def _short(gains: PIDGains) -> str:
    return f"p={gains.p:.3g}, i={gains.i:.3g}, d={gains.d:.3g}, beta={gains.beta:g}"


def _largest(norms: Tensor) -> float:
    return float(norms.max()) if norms.numel() else 1.0


def _show(kappa: complex) -> str:
    imaginary = f"{kappa.imag:+.3f}i" if abs(kappa.imag) > 5e-4 else ""
    return f"{kappa.real:.3f}{imaginary}"


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _rows(matrix: Tensor) -> list[list[float | None]]:
    return [[_finite(value) for value in row] for row in matrix.tolist()]


def _over_sample(norms: Tensor) -> dict[str, list[float]]:
    flat = norms.flatten(0, 1)
    if not flat.numel():
        return {"max": [], "median": []}
    return {"max": flat.amax(0).tolist(), "median": flat.median(0).values.tolist()}
