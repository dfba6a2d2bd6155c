"""How large the control is beside what attention gives, in whatever a model runs."""
# B batch, H heads, Hkv value heads, N tokens, D head dim, L layers

from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from pidformer.control.feedback import Feedback, Law
from pidformer.control.gains import PIDGains
from pidformer.control.pid import PIDState, ReferenceState, SumlessState
from pidformer.errors import InputError
from pidformer.nn.attention import PIDAttention
from pidformer.nn.gains import LearnedFeedback, acting_gains, controlled_attention
from pidformer.ops.dispatch import kernels


class ControlScale(NamedTuple):
    """Root mean squares over tokens, heads and images, each (L,), float64."""

    output: Tensor
    """A v, what attention gives."""
    control: Tensor
    """p e + i sum(e) + d (e - e_previous), what is added to it."""

    @property
    def ratio(self) -> Tensor:
        """control / output; 0 where nothing is added."""
        return self.control / self.output

    @property
    def mean_ratio(self) -> float:
        """Over the layers in which control acts; 0 if it acts in none."""
        acting = self.control != 0
        return float(self.ratio[acting].mean()) if bool(acting.any()) else 0.0


class ControlMeter:
    """Measures all that a model of ours runs inside the block; `scale()` says what was found.

    Layer by layer, before the heads are merged and projected, from the states on both sides and
    what the layer makes of them, u = A v + control. Gains that are learned, ramped or different by
    layer, and the variants of the integral, count as they act. Mode, gradients and precision are
    the caller's; a compiled model must run eagerly, or its inside is not seen.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = _layers(model)
        if not self._layers:
            raise InputError(
                f"{type(model).__name__} does not hand its state from layer to layer, or has terms "
                "beyond PID gains; the scale of the control is read from PIDVisionTransformer and "
                "its kin"
            )
        self._squares = torch.zeros(2, len(self._layers), dtype=torch.float64)  # A v, control
        self._counts = torch.zeros(len(self._layers), dtype=torch.float64)
        self._made: Tensor | None = None  # u (B, N, H D) of the layer that runs

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            opened.enter_context(kernels("torch"))  # whose states are those of the definition
            for depth, layer in enumerate(self._layers):
                for handle in (
                    layer.register_forward_pre_hook(_with_values),
                    layer.norm.register_forward_pre_hook(self._keep),
                    layer.register_forward_hook(partial(self._add, depth)),
                ):
                    opened.callback(handle.remove)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def scale(self) -> ControlScale:
        """Over everything that was run."""
        seen = int((self._counts > 0).sum())
        if seen < len(self._layers):
            raise InputError(
                f"{seen} attentions were seen in a model of {len(self._layers)} layers with control"
            )
        return ControlScale(*(self._squares / self._counts).sqrt())

    def _keep(self, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        self._made = given[0]

    def _add(
        self, depth: int, layer: Any, given: tuple[Any, ...], made: tuple[Tensor, PIDState | None]
    ) -> None:
        assert self._made is not None
        control = _control(layer, given[1] if len(given) > 1 else None, made[1])
        if control is None:
            control = self._made.new_zeros((), dtype=torch.float32)
        output = self._made.float() - control
        both = torch.stack([x.double().square().sum() for x in (output, control)])
        self._squares[:, depth] += both.cpu()
        self._counts[depth] += output.numel()
        self._made = None


def _with_values(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same inputs, the state one that hands on v_l, where that of P control keeps v_0 alone."""
    return tuple(SumlessState(*x) if isinstance(x, ReferenceState) else x for x in given)


def has_control(model: nn.Module) -> bool:
    """Whether a controller acts in the model, in layers that `ControlMeter` can read."""
    gains = [layer.gains for layer in _layers(model)]
    return any(
        g is not None and not (isinstance(g, PIDGains) and g.kind == "softmax") for g in gains
    )


def _layers(model: nn.Module) -> list[Any]:
    """The attention layers, if all of them hand a state on and have no terms but PID control."""
    layers = controlled_attention(model)
    beyond = (Feedback, LearnedFeedback)
    is_read = all(isinstance(x, PIDAttention) and not isinstance(x.gains, beyond) for x in layers)
    return layers if is_read else []


def _control(layer: Any, before: PIDState | None, after: PIDState | None) -> Tensor | None:
    """What the layer added (B, N, H D), from the states on both sides; None for nothing."""
    gains = acting_gains(layer)
    if gains is None or after is None or (before is None and layer.first_layer == "free"):
        return None
    value = after.previous.float()
    error = gains.beta * after.initial.float() - value
    change = torch.zeros_like(value) if before is None else before.previous.float() - value
    control = gains.p * error + gains.i * after.integral + gains.d * change  # (B, Hkv, N, D)
    if isinstance(gains, Law):  # of another discretisation
        control = gains.scale * control
    group = layer.num_heads // layer.num_kv_heads  # query heads that a control serves
    return control.repeat_interleave(group, dim=1).transpose(1, 2).flatten(2)
