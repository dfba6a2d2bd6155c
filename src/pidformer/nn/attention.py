"""Multi-head self-attention with a controller."""
# B batch, N tokens, C width, H heads, Hkv key/value heads, D head dim

from collections.abc import Callable
from typing import Any

import torch
from timm.layers import use_fused_attn
from torch import Tensor, nn

from pidformer.control.feedback import read_gains
from pidformer.control.gains import Gains, GainsLike
from pidformer.control.pid import FirstLayer, PIDState, check_first_layer
from pidformer.errors import InputError, check_multiple
from pidformer.nn.gains import LearnedGains, acting_gains, gate_layer, gate_of
from pidformer.ops.attention import feed_back, mixed_values, of_queries, pid_attention, scores
from pidformer.ops.short import split_heads


def attend(
    attention: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: PIDState | None,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    **options: Any,
) -> tuple[Tensor, PIDState | None]:
    """`pid_attention` with the gains, the dropout and the kind of first layer of a module.

    Where the module says `fused_attn=False` (as timm's, after `timm.layers.set_fused_attn(False)`)
    the attention matrix is computed, and can be seen: it goes through `attn_drop`.
    """
    if attention.fused_attn:
        options |= {"attn_mask": attn_mask, "is_causal": is_causal}
        return _fused(attention, q, k, v, state, **options)
    weights = attention.attn_drop(scores(q, k, attn_mask, is_causal).softmax(dim=-1))
    seen = of_queries(v if "value" in options else seen_values(attention, v, state), q)
    value, gate = options.get("value", v), options.get("gate")
    return _fed_back(attention, weights @ seen, value, state, gate)


def _fused(
    attention: Any, q: Tensor, k: Tensor, v: Tensor, state: PIDState | None, **options: Any
) -> tuple[Tensor, PIDState | None]:
    return pid_attention(
        q,
        k,
        v,
        state,
        acting_gains(attention),
        dropout_p=attention.attn_drop.p if attention.training else 0.0,
        first_layer=attention.first_layer,
        **options,
    )


def _fed_back(
    attention: Any, out: Tensor, value: Tensor, state: PIDState | None, gate: Tensor | None
) -> tuple[Tensor, PIDState | None]:
    return feed_back(out, value, state, acting_gains(attention), attention.first_layer, gate=gate)


def seen_values(attention: Any, v: Tensor, state: PIDState | None) -> Tensor:
    """The values that attention mixes: the layer's own, unless its law brings in the first's."""
    return mixed_values(v, state, acting_gains(attention))


# torch.fx records these as one step each: what they do depends on shapes, which it does not know.
for _step in ("_fused", "_fed_back", "seen_values", "scores", "of_queries", "split_heads"):
    torch.fx.wrap(_step)


class PIDAttention(nn.Module):
    """Self-attention whose heads feed back what each token has lost since the first layer.

        x -> proj(concat_h(A v + p e + i sum e + d (e - e_previous))),    e = beta v_0 - v

    Call it as `x, state = attention(x, state)` with `state=None` at the first layer. `gains=None`
    is plain attention; `LearnedGains` are trained with the rest, as `gains.*`. The other
    parameters are timm's (`qkv`, `q_norm`, `k_norm`, `norm`, `proj`); `scale_norm` normalises the
    merged heads, control included, before `proj`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        gains: Gains | GainsLike | LearnedGains | None = None,
        *,
        num_kv_heads: int | None = None,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Callable[..., nn.Module] = nn.LayerNorm,
        first_layer: FirstLayer = "free",
        is_causal: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_multiple("dim", dim, "num_heads", num_heads)
        check_multiple("num_heads", num_heads, "num_kv_heads", num_kv_heads)
        if isinstance(gains, LearnedGains) and gains.num_heads != num_kv_heads:
            raise InputError(
                f"gains for {gains.num_heads} heads do not fit {num_kv_heads} value heads"
            )
        check_first_layer(first_layer)
        place = placement(device, dtype)
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = dim // num_heads
        self.gains = gains if isinstance(gains, LearnedGains) else read_gains(gains)
        self.first_layer = first_layer
        self.register_buffer("gain_share", None, persistent=False)  # see `set_gain_share`
        self.is_causal = is_causal
        self.fused_attn = use_fused_attn()
        width = (num_heads + 2 * num_kv_heads) * self.head_dim
        self.qkv = nn.Linear(dim, width, bias=qkv_bias, **place)
        self.q_norm = norm_layer(self.head_dim, **place) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim, **place) if qk_norm else nn.Identity()
        self.attn_drop = nn.Dropout(attn_drop)
        self.norm = norm_layer(dim, **place) if scale_norm else nn.Identity()
        self.proj = nn.Linear(dim, dim, bias=proj_bias, **place)
        self.gate = gate_layer(self.gains, dim, dim, **place)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(
        self,
        x: Tensor,
        state: PIDState | None = None,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> tuple[Tensor, PIDState | None]:
        packed = self.qkv(x).unflatten(-1, (-1, self.head_dim))  # (B, N, H + 2 Hkv, D)
        seen = {"attn_mask": attn_mask, "is_causal": self.is_causal or is_causal}
        out, state = self.attend(packed, state, **seen, **gate_of(self, x))
        merged = self.norm(out.transpose(1, 2).flatten(2))  # (B, N, C)
        return self.proj_drop(self.proj(merged)), state

    def attend(
        self, packed: Tensor, state: PIDState | None, **options: Any
    ) -> tuple[Tensor, PIDState | None]:
        """The heads' output (B, H, N, D) and the state, from q, k, v as one projection has them."""
        norms = (self.q_norm, self.k_norm)
        whole = packed if all(isinstance(norm, nn.Identity) for norm in norms) else None
        q, k, v = self.split(packed)
        return attend(self, q, k, v, state, packed=whole, **options)

    def split(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, H, N, D), k and v (B, Hkv, N, D), queries and keys normalised."""
        q, k, v = split_heads(packed, self.num_kv_heads)
        return self.q_norm(q), self.k_norm(k), v

    @property
    def carries_state(self) -> bool:
        """Whether the layer hands a state on: not without a controller."""
        return self.gains is not None

    def extra_repr(self) -> str:
        heads = f"num_heads={self.num_heads}"
        return heads if isinstance(self.gains, nn.Module) else f"{heads}, gains={self.gains!r}"


def placement(device: torch.device | str | None, dtype: torch.dtype | None) -> dict[str, Any]:
    """`device` and `dtype` as keywords; those not given are left out, for layers without them."""
    given = {"device": device, "dtype": dtype}
    return {name: value for name, value in given.items() if value is not None}
