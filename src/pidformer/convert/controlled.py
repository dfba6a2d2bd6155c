"""What every converted part of a timm model is: an instance of a subclass of its own class."""
# B images, N tokens, H heads, D head dim

from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pidformer.control.gains import PIDGains
from pidformer.control.pid import PIDState
from pidformer.convert.mark import Mark
from pidformer.models.gains import is_gain
from pidformer.models.vit import ControlledDepth
from pidformer.ops.token import plain_weight

Carried = tuple[Tensor, PIDState | None]


class Controlled:
    """Marks what was converted; `original` is the class it was and becomes again."""

    original: type[nn.Module]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For pickle, which finds a class by name: this one is made again by `made`."""
        kind: Any = type(self)
        if "original" not in kind.__dict__:  # a subclass, with a name of its own
            return super().__reduce_ex__(protocol)
        return empty, kind.__bases__, self.__getstate__()


class ControlledModel(Controlled, ControlledDepth):
    """A converted vision transformer."""

    _no_split_modules: tuple[str, ...]
    pidformer: Mark

    @property
    def gains(self) -> PIDGains | tuple[PIDGains, ...]:
        """The gains the model was converted with: for all layers, or one per layer."""
        return self.pidformer.conversion.model_gains

    def prune_intermediate_layers(self: Any, *args: Any, **options: Any) -> Any:
        """timm's; the layers that stay are the first ones, with their gains."""
        taken = self.original.prune_intermediate_layers(self, *args, **options)
        conversion = self.pidformer.conversion
        left = conversion.gains[: len(self.blocks)]
        self.pidformer = Mark(replace(conversion, gains=left))
        return taken

    def no_weight_decay(self: Any) -> set[str]:
        """timm's set, and the learned gains."""
        return {*self.original.no_weight_decay(self), *filter(is_gain, self.state_dict())}


@cache
def made(mixin: Any, original: Any) -> Any:
    name = f"Controlled{original.__name__}"
    return type(name, (mixin, original), {"original": original, "__doc__": mixin.__doc__})


def empty(mixin: Any, original: Any) -> Any:
    """An instance of a made class, to be filled by pickle."""
    kind = made(mixin, original)
    return kind.__new__(kind)


def projected(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, (B, H, N, D) each, as the three classes of timm make them."""
    if attention.qkv is None:
        q, k, v = (
            project(x).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        return q, k, v
    if getattr(attention, "q_bias", None) is None:
        packed = attention.qkv(x)
    else:
        bias = torch.cat((attention.q_bias, attention.k_bias, attention.v_bias))
        weight = None if attention.qkv_bias_separate else plain_weight(attention.qkv)
        # timm reads the weight always, and passes an adapter (LoRA) by
        packed = attention.qkv(x) + bias if weight is None else F.linear(x, weight, bias)
    packed = packed.unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
    q, k, v = packed.unbind(0)
    return q, k, v
