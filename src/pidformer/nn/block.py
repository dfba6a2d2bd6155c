"""The pre-norm transformer block, carrying the controller's state along."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import DropPath, LayerScale, Mlp
from torch import Tensor, nn

from pidformer.control.gains import Gains, GainsLike
from pidformer.control.pid import PIDState
from pidformer.nn.attention import PIDAttention, placement
from pidformer.nn.gains import LearnedGains
from pidformer.ops import dispatch
from pidformer.ops.gelu import bias_gelu

torch.fx.wrap("bias_gelu")  # it looks at types, which torch.fx does not know


class PIDBlock(nn.Module):
    """x = x + attention(norm1(x)); x = x + mlp(norm2(x)), as `x, state = block(x, state)`.

    Without a controller (`gains=None`) there is no state, and `x = block(x)` as in timm. Either way
    x goes through `out`, which does nothing: a place for tools that look at layers of one tensor.
    `attention_residual=False` leaves out the residual around attention, x = attention(norm1(x)):
    the setting in which plain attention collapses. `attention` builds the attention layer, with
    the further `options` of `PIDAttention`. Parameters are timm's.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        gains: Gains | GainsLike | LearnedGains | None = None,
        *,
        mlp_ratio: float = 4.0,
        scale_attn_norm: bool = False,
        scale_mlp_norm: bool = False,
        proj_bias: bool = True,
        proj_drop: float = 0.0,
        init_values: float | None = None,
        drop_path: float = 0.0,
        act_layer: type[nn.Module] = nn.GELU,
        norm_layer: Callable[..., nn.Module] = nn.LayerNorm,
        mlp_layer: type[nn.Module] = Mlp,
        attention_residual: bool = True,
        attention: Callable[..., PIDAttention] = PIDAttention,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        place = placement(device, dtype)
        self.attention_residual = attention_residual
        self.norm1 = norm_layer(dim, **place)
        self.attn = attention(
            dim,
            num_heads,
            gains,
            scale_norm=scale_attn_norm,
            proj_bias=proj_bias,
            proj_drop=proj_drop,
            norm_layer=norm_layer,
            **place,
            **options,
        )
        self.ls1 = _layer_scale(dim, init_values, **place)
        self.drop_path1 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = norm_layer(dim, **place)
        self.mlp = mlp_layer(
            in_features=dim,
            hidden_features=int(dim * mlp_ratio),
            act_layer=act_layer,
            norm_layer=norm_layer if scale_mlp_norm else None,
            bias=proj_bias,
            drop=proj_drop,
            **place,
        )
        self.ls2 = _layer_scale(dim, init_values, **place)
        self.drop_path2 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.out = nn.Identity()

    def forward(
        self,
        x: Tensor,
        state: PIDState | None = None,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor | tuple[Tensor, PIDState | None]:
        mixed, state = self.attn(self.norm1(x), state, attn_mask=attn_mask, is_causal=is_causal)
        mixed = self.ls1(mixed)
        # Without the residual there is nothing for stochastic depth to fall back on.
        x = x + self.drop_path1(mixed) if self.attention_residual else mixed
        x = self.out(x + self.drop_path2(self.ls2(feed_forward(self.mlp, self.norm2(x)))))
        return (x, state) if self.attn.carries_state else x


def feed_forward(mlp: Any, x: Tensor) -> Tensor:
    """mlp(x); where our kernels are asked for by name, timm's `Mlp` with bias and GELU as one."""
    if dispatch.selected() != "triton" or not _is_plain(mlp):
        return mlp(x)
    hidden = bias_gelu(F.linear(x, mlp.fc1.weight), mlp.fc1.bias)
    return mlp.drop2(mlp.fc2(hidden))


def _is_plain(mlp: Any) -> bool:
    """Whether nothing but a bias and the exact GELU is between the two products, nor a hook."""
    if type(mlp) is not Mlp or type(mlp.act) is not nn.GELU or mlp.act.approximate != "none":
        return False
    if type(mlp.fc1) is not nn.Linear or mlp.fc1.bias is None or mlp.drop1.p:
        return False
    return type(mlp.norm) is nn.Identity and not any(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        for module in (mlp, mlp.fc1, mlp.act, mlp.drop1, mlp.norm)
    )


def _layer_scale(dim: int, init_values: float | None, **place: Any) -> nn.Module:
    return LayerScale(dim, init_values=init_values, **place) if init_values else nn.Identity()
