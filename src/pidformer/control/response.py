"""The loop of one mode as a control engineer sees it: responses over depth and frequency, a locus.

In a mode with kernel eigenvalue kappa, a layer is one sample of the loop

    v_{l+1} = kappa v_l + control_l + w_l,    e_l = r_l - v_l

of plant G and controller C (the network's; of another discretisation or linear law, with kappa and
the gains that give its poles), where r is the reference beta v_0 and w a disturbance:

    G(z) = 1 / (z - kappa),    C(z) = p + i z / (z - 1) + d (z - 1) / z

    L = C G (loop),    T = L / (1 + L) (r to v),    S = 1 / (1 + L),    G S (w to v)

Responses start from rest. In the network the reference is a step at the first layer.
"""
# ... any shape of kappa, T layers, F frequencies

from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from pidformer.control.feedback import Feedback, as_plain_gains
from pidformer.control.gains import GainsLike, PIDGains
from pidformer.control.stability import as_pid, in_order, poles
from pidformer.errors import InputError, check_known

GainName = Literal["p", "i", "d"]


def step_response(gains: GainsLike, kappa: Any, layers: int = 24) -> Tensor:
    """v_0 ... v_layers, (..., layers + 1), when the reference steps from 0 to 1 at layer 0."""
    return _respond(*_loop(gains, kappa), layers, reference=1.0, disturbance=0.0)


def disturbance_response(gains: GainsLike, kappa: Any, layers: int = 24) -> Tensor:
    """The same when a disturbance of 1 is added at every layer; an integral leads it back to 0."""
    return _respond(*_loop(gains, kappa), layers, reference=0.0, disturbance=1.0)


def _loop(gains: GainsLike, kappa: Any) -> tuple[PIDGains, Tensor]:
    """PID gains, and the eigenvalues at which they close the loop."""
    gains, kappa = in_order(gains, kappa)
    if isinstance(gains, Feedback) and gains.first:
        raise InputError(f"{gains.kind} has the reference inside attention, which no loop here has")
    plain, slope, shift = as_pid(gains)
    return plain, slope * kappa + shift


def _respond(
    gains: PIDGains, kappa: Tensor, layers: int, *, reference: float, disturbance: float
) -> Tensor:
    if layers < 1:
        raise InputError(f"layers must be at least 1, got {layers}")
    value = integral = previous = torch.zeros_like(kappa)
    values = [value]
    for _ in range(layers):
        error = reference - value
        integral = integral + error
        control = gains.p * error + gains.i * integral + gains.d * (error - previous)
        value, previous = kappa * value + control + disturbance, error
        values.append(value)
    found = torch.stack(values, dim=-1)
    return found.real if bool((kappa.imag == 0).all()) else found


class FrequencyResponse(NamedTuple):
    """The loop at e^(i omega); each is complex (..., F)."""

    loop: Tensor
    tracking: Tensor
    """From the reference to the value, T."""
    sensitivity: Tensor
    """S: its largest size is the reciprocal of the distance of L from -1."""
    disturbance: Tensor
    """From the disturbance to the value, G S."""


def frequency_response(gains: GainsLike, kappa: Any, omega: Any) -> FrequencyResponse:
    """The loop at `omega` (F,), in radians per layer from 0 (excluded) to pi."""
    gains, kappa = _loop(gains, kappa)
    omega = torch.as_tensor(omega, dtype=torch.float64).flatten()
    if not bool(((omega > 0) & (omega <= torch.pi)).all()):
        raise InputError("omega must be above 0 and at most pi, in radians per layer")
    z = torch.polar(torch.ones_like(omega), omega)
    plant = 1 / (z - kappa[..., None])
    loop = plant * (gains.p + gains.i * z / (z - 1) + gains.d * (z - 1) / z)
    rest = 1 / (1 + loop)
    return FrequencyResponse(loop, loop * rest, rest, plant * rest)


def root_locus(gains: GainsLike, name: GainName, values: Any, kappa: Any = 0.0) -> Tensor:
    """The poles (V, ..., 3) as one gain takes `values` (V,) and the others stay."""
    check_known("gain", name, get_args(GainName))
    start = as_plain_gains(gains)
    numbers = [float(value) for value in torch.as_tensor(values, dtype=torch.float64).flatten()]
    return torch.stack([poles(replace(start, **{name: value}), kappa) for value in numbers])
