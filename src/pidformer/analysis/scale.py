"""How large the control is beside what attention gives, layer by layer."""
# B batch, H heads, Hkv value heads, N tokens, D head dim, L layers

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pidformer.analysis.calls import AttentionCall, visit_attention
from pidformer.analysis.looking import Model, check_inputs, inner_model
from pidformer.control.pid import PIDState
from pidformer.errors import InputError
from pidformer.nn.gains import acting_gains, controlled_attention


class ControlScale(NamedTuple):
    """Root mean squares over tokens, heads and images, each (L,), float64."""

    output: Tensor
    """Of A v, what attention gives."""
    control: Tensor
    """Of p e + i sum(e) + d (e - e_previous), what is added to it."""

    @property
    def ratio(self) -> Tensor:
        """control / output; 0 where nothing is added."""
        return self.control / self.output

    @property
    def mean_ratio(self) -> float:
        """Over the layers in which control acts; 0 if it acts in none."""
        acting = self.control > 0
        return float(self.ratio[acting].mean()) if bool(acting.any()) else 0.0


def control_scale(
    model: Model,
    images: Tensor,
    *,
    batch_size: int = 256,
    on_progress: Callable[[int], None] | None = None,
) -> ControlScale:
    """The size of the control and of the attention's output in every layer of our own models.

    Both are measured before the heads are merged and projected, in the model's own forward: gains
    that are learned, ramped or different by layer, and the variants of the integral, count as they
    act.
    """
    check_inputs(model, images, batch_size)
    layers = controlled_attention(inner_model(model))
    if not layers or not all(hasattr(layer, "value_residual") for layer in layers):
        raise InputError(
            f"{type(inner_model(model)).__name__} does not hand its state from layer to layer; "
            "the scale of the control is read from PIDVisionTransformer and its kin"
        )
    squares = torch.zeros(2, len(layers), dtype=torch.float64)  # of A v and of the control
    counts = torch.zeros(len(layers), dtype=torch.float64)
    for part in images.split(batch_size):
        _add(model, part, layers, squares, counts)
        if on_progress is not None:
            on_progress(len(part))
    return ControlScale(*(squares / counts).sqrt())


def _add(model: Model, images: Tensor, layers: list[Any], squares: Tensor, counts: Tensor) -> None:
    outputs: list[tuple[Tensor, int]] = []
    controls: dict[int, Tensor] = {}

    def visit(found: AttentionCall) -> None:
        assert found.q is not None and found.v is not None
        value = found.v.repeat_interleave(found.q.shape[-3] // found.v.shape[-3], dim=-3)
        output = (found.matrix() @ value.float()).double()
        outputs.append((output.square().sum(), output.numel()))

    def hook(depth: int) -> Callable[..., None]:
        def note(layer: Any, given: tuple[Any, ...], made: tuple[Tensor, PIDState | None]) -> None:
            before = given[1] if len(given) > 1 else None
            controls[depth] = _control(layer, before, made[1])

        return note

    handles = [layer.register_forward_hook(hook(depth)) for depth, layer in enumerate(layers)]
    try:
        visit_attention(model, images, visit)
    finally:
        for handle in handles:
            handle.remove()
    if len(outputs) != len(layers):
        raise InputError(
            f"{len(outputs)} attentions were seen in a model of {len(layers)} layers with control"
        )
    for depth, (layer, (output, count)) in enumerate(zip(layers, outputs, strict=True)):
        group = layer.num_heads // layer.num_kv_heads  # query heads that a control serves
        squares[0, depth] += output.cpu()
        squares[1, depth] += group * controls[depth].double().square().sum().cpu()
        counts[depth] += count


def _control(layer: Any, before: PIDState | None, after: PIDState | None) -> Tensor:
    """What the layer added (B, Hkv, N, D), from the states on both sides; 0 for nothing."""
    gains = acting_gains(layer)
    if gains is None or after is None or (before is None and layer.first_layer == "free"):
        return torch.zeros(())
    value = after.previous.float()
    error = gains.beta * after.initial.float() - value
    change = torch.zeros_like(value) if before is None else before.previous.float() - value
    return gains.p * error + gains.i * after.integral + gains.d * change
