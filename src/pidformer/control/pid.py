"""The controller: one pure step per layer, with a state that does not grow with depth."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from pidformer.control.feedback import acting_law, read_gains
from pidformer.control.gains import Gains, acts
from pidformer.errors import InputError, check_known

FirstLayer = Literal["free", "controlled"]


class PIDState(NamedTuple):
    """What a layer hands to the next: three tensors of the values' shape.

    The values v_0 and v_{l-1} are kept rather than the reference beta v_0 and the error e_{l-1}:
    they exist already (attention keeps them for its backward), and beta cancels in
    e_l - e_{l-1} = v_{l-1} - v_l.
    """

    initial: Tensor
    """v_0, the values of the first layer."""
    integral: Tensor
    """e_1 + ... + e_l, in float32 or wider whatever the values are (our kernels: in their type)."""
    previous: Tensor
    """v_l, for the derivative at layer l + 1."""


class FirstState(PIDState):
    """The state after a layer that summed no error: its integral is a single zero, expanded.

    The type tells kernels that they need not read the integral; to look at its numbers they would
    have to wait for the device. Slices keep the type; replacing a part gives a plain `PIDState`.
    """

    __slots__ = ()

    def _replace(self, **parts: Tensor) -> PIDState:  # type: ignore[override]
        return PIDState(**(dict(zip(self._fields, self, strict=True)) | parts))


class SumlessState(FirstState):
    """The state where no layer has an integral: no errors are summed, and zero is passed on."""

    __slots__ = ()


class ReferenceState(SumlessState):
    """The same without derivatives: v_0 alone, which stands for the previous values too."""

    __slots__ = ()


def lean_state(state: FirstState, terms: Collection[str]) -> FirstState:
    """The first layer's state for layers with no other terms ("p", "i", "d") than these."""
    if "i" in terms:
        return state
    return (SumlessState if "d" in terms else ReferenceState)(*state)


def next_state(state: PIDState, initial: Tensor, integral: Tensor, value: Tensor) -> PIDState:
    """The state after a layer, of the kind it had before; parts that it does not keep are unread.

    `initial` is v_0 as the layer hands it on.
    """
    if isinstance(state, ReferenceState):
        return ReferenceState(initial, state.integral, initial)
    if isinstance(state, SumlessState):
        return SumlessState(initial, state.integral, value)
    return PIDState(initial, integral, value)


def first_state(value: Tensor) -> FirstState:
    """The state after a layer that sets the reference and is not controlled."""
    wide = torch.promote_types(value.dtype, torch.float32)
    nothing = value.new_zeros((), dtype=wide).expand(value.shape)
    return FirstState(value, nothing, value)


@dataclass(frozen=True)
class PIDController:
    """The control of one layer as a value: `control, state = controller(value, state)`.

    See `pid_step` for the equation and the two readings of the first layer.
    """

    gains: Gains
    first_layer: FirstLayer = "free"

    def __post_init__(self) -> None:
        object.__setattr__(self, "gains", acting_law(read_gains(self.gains)))
        check_first_layer(self.first_layer)

    def __call__(self, value: Tensor, state: PIDState | None) -> tuple[Tensor, PIDState]:
        return pid_step(value, state, self.gains, self.first_layer)


def pid_step(
    value: Tensor, state: PIDState | None, gains: Gains, first_layer: FirstLayer = "free"
) -> tuple[Tensor, PIDState]:
    """One step of the controller, `(value, state) -> (control, state)`:

        control_l = p e_l + i (e_1 + ... + e_l) + d (e_l - e_{l-1}),    e_l = beta v_0 - v_l

    `state is None` marks the first layer. With `first_layer="free"` (time reading: z = 0 at t = 0)
    it sets the reference and is not controlled; the sum starts at the second layer and the first
    difference uses e_0 = (beta - 1) v_0. With `first_layer="controlled"` (literal reading of
    Definition 1) the first layer counts as l = 1 and e_0 = e_1. The readings agree for beta = 1;
    docs/paper-notes.md says why the first is the default.

    Everything is elementwise: the control of a token reads that token alone. Sums are kept in
    float32 or wider, so that the integral of a deep half-precision network loses nothing. A gain of
    zero reads nothing, so a compiler drops the sum where no layer uses it.
    """
    if state is None and first_layer == "free":
        state = first_state(value)
        return state.integral, state
    wide = widened(value)
    if state is None:
        error = gains.beta * wide - wide
        return gains.p * error + gains.i * error, PIDState(value, error, value)
    check_state(state, value)
    check_terms(state, gains)
    if isinstance(state, SumlessState) and not any(map(acts, (gains.p, gains.i, gains.d))):
        return state.integral, next_state(state, state.initial, state.integral, value)
    error = gains.beta * state.initial.to(wide.dtype) - wide
    integral = state.integral if isinstance(state, SumlessState) else state.integral + error
    acting = []
    if acts(gains.p):
        acting.append(gains.p * error)
    if acts(gains.i):
        acting.append(gains.i * integral)
    if acts(gains.d):
        acting.append(gains.d * (state.previous - wide))
    control = sum(acting[1:], start=acting[0]) if acting else torch.zeros_like(wide)
    return control, next_state(state, state.initial, integral, value)


def widened(numbers: Tensor) -> Tensor:
    """In float32 or wider, whatever they are: for sums and grids that lose too much in less."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


def check_state(state: PIDState, value: Tensor) -> None:
    """Refuse a state that belongs to other values."""
    if state.initial.shape != value.shape:
        raise InputError(
            f"state of shape {tuple(state.initial.shape)} does not fit values of shape "
            f"{tuple(value.shape)}; a state belongs to one forward pass, start with state=None"
        )


def check_terms(state: PIDState, gains: Gains) -> None:
    """Refuse a state without what a gain needs. Tensors are not looked at: that takes a wait."""
    if not isinstance(state, SumlessState):
        return
    needed = {"sum of errors": gains.i}
    if isinstance(state, ReferenceState):
        needed["previous values"] = gains.d
    for what, gain in needed.items():
        if not isinstance(gain, Tensor) and gain != 0:
            raise InputError(
                f"{gains} needs the {what}, which the layers before did not keep; give "
                "`scan_blocks` every layer that the state will meet as `network`"
            )


def check_first_layer(name: str) -> None:
    """Refuse a reading of the first layer that does not exist."""
    check_known("first_layer", name, get_args(FirstLayer))
