"""The controllers that act in a model, layer by layer and head by head."""
# L layers, H heads

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pidformer.analysis.inspection import Model, inner_model
from pidformer.control.feedback import Feedback, acting_law, is_linear, reads_state
from pidformer.control.gains import GainTensors, PIDGains
from pidformer.control.pid import FirstLayer
from pidformer.errors import InputError
from pidformer.models.gains import layer_gains, resolve_gains
from pidformer.nn import LearnedGains, controlled_attention
from pidformer.nn.variants import VARIANTS

HeadGains = tuple[PIDGains, ...]
"""One controller per head."""


@dataclass(frozen=True)
class Controllers:
    layers: tuple[HeadGains, ...]
    """Empty: attention is plain everywhere."""
    first_layer: FirstLayer = "free"

    def acts(self, depth: int) -> bool:
        """Whether layer `depth` (from 0) is controlled; a free first one only by its own values."""
        if not self.layers:
            return False
        layer = [acting_law(gains) for gains in self.layers[depth]]
        if depth == 0 and self.first_layer == "free":
            return not reads_state(layer[0])
        return any(gains.kind != "softmax" for gains in layer)

    @property
    def acting(self) -> list[PIDGains]:
        """The gains of every head of every controlled layer."""
        return [g for depth, layer in enumerate(self.layers) if self.acts(depth) for g in layer]

    @property
    def shared(self) -> PIDGains | None:
        """The gains, if all controlled layers and heads have the same."""
        different = set(self.acting)
        return different.pop() if len(different) == 1 else None

    def loop(self, depth: int, matrix: Tensor) -> tuple[Tensor, GainTensors, Tensor]:
        """Layer `depth`, under its attention A, as v_{l+1} = kernel v_l + control + initial v_0.

        kernel = s (own A + skip) and initial (B, H, N, N); the gains s (p, i, d), (H, 1, 1) each.
        """

        def of(name: str) -> Tensor:
            plain = getattr(Feedback(), name)
            row = [getattr(acting_law(gains), name, plain) for gains in self.layers[depth]]
            return torch.tensor(row, dtype=torch.float64).to(matrix.device)[:, None, None]

        scale = of("scale")
        eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        kernel = scale * (of("own") * matrix + of("skip") * eye)
        p, i, d = (scale * of(name) for name in ("p", "i", "d"))
        known = 1 - of("embedded")  # v_0 is no part of a reference that is looked up
        beta = self.layers[depth][0].beta
        return kernel, GainTensors(p, i, d, beta), scale * known * of("first") * matrix


def read_controllers(model: Model, gains: Any, heads: Sequence[int]) -> Controllers:
    """The controllers of a model with `heads` in each layer; `gains` replace the model's own."""
    inner = inner_model(model)
    attention = controlled_attention(inner) if isinstance(inner, nn.Module) else []
    first_layer: FirstLayer = attention[0].first_layer if attention else "free"
    for name, usual in VARIANTS.items():
        if any(getattr(module, name, usual) != usual for module in attention):
            raise InputError(f"a model with {name} follows another recursion than is analysed here")
    if gains is not None:
        given: Sequence[Any] = layer_gains(resolve_gains(gains, len(heads)), len(heads))
        shares = [None] * len(given)
    else:
        given = [module.gains for module in attention]
        shares = [getattr(module, "gain_share", None) for module in attention]
    if not any(given) or all(type(g) is PIDGains and g.kind == "softmax" for g in given):
        return Controllers((), first_layer)
    if len(given) != len(heads):
        raise InputError(f"gains for {len(given)} layers do not fit a model of {len(heads)} layers")
    layers = [
        _of_heads(layer, count, share)
        for layer, count, share in zip(given, heads, shares, strict=True)
    ]
    for law in {law for layer in layers for law in layer}:
        if not is_linear(law):
            raise InputError(
                f"{law.kind} is not linear in the values, so it has no poles: measured only"
            )
        if getattr(law, "embedded", 0) and (law.p or law.i or law.d):
            raise InputError(f"{law} has a learned reference, whose control is not analysed here")
    return Controllers(tuple(layers), first_layer)


def _of_heads(gains: PIDGains | LearnedGains | None, heads: int, share: Tensor | None) -> HeadGains:
    """The gains of each head; a `share` of them, where they are being ramped up."""
    values = gains.values() if isinstance(gains, LearnedGains) else [gains or PIDGains()]
    if share is not None:
        values = [acting_law(each).scaled(float(share)) for each in values]
    return tuple(each for each in values for _ in range(heads // len(values)))
