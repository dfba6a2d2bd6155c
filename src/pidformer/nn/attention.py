"""Multi-head self-attention with a controller."""
# B batch, N tokens, C width, H heads, Hkv key/value heads, D head dim

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from pidformer.control.gains import Gains
from pidformer.control.pid import FirstLayer, PIDState
from pidformer.errors import InputError
from pidformer.ops.attention import pid_attention


class PIDAttention(nn.Module):
    """Self-attention whose heads feed back what each token has lost since the first layer.

        x -> proj(concat_h(A v + p e + i sum e + d (e - e_previous))),    e = beta v_0 - v

    Call it as `x, state = attention(x, state)` with `state=None` at the first layer. `gains=None`
    is plain attention. Parameters are timm's (`qkv`, `q_norm`, `k_norm`, `proj`).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        gains: Gains | None = None,
        *,
        num_kv_heads: int | None = None,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Callable[[int], nn.Module] = nn.LayerNorm,
        first_layer: FirstLayer = "free",
        is_causal: bool = False,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads <= 0 or dim % num_heads:
            raise InputError(f"dim must be a multiple of num_heads, got {dim} and {num_heads}")
        if num_kv_heads <= 0 or num_heads % num_kv_heads:
            raise InputError(
                f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}"
            )
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = dim // num_heads
        self.gains = gains
        self.first_layer = first_layer
        self.is_causal = is_causal
        self.qkv = nn.Linear(dim, (num_heads + 2 * num_kv_heads) * self.head_dim, bias=qkv_bias)
        self.q_norm = norm_layer(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim) if qk_norm else nn.Identity()
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim, bias=proj_bias)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(
        self,
        x: Tensor,
        state: PIDState | None = None,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> tuple[Tensor, PIDState | None]:
        heads, kv_heads = self.num_heads, self.num_kv_heads
        packed = self.qkv(x).unflatten(-1, (heads + 2 * kv_heads, self.head_dim)).transpose(1, 2)
        q, k, v = packed.split((heads, kv_heads, kv_heads), dim=1)  # (B, H | Hkv, N, D)
        out, state = pid_attention(
            self.q_norm(q),
            self.k_norm(k),
            v,
            state,
            self.gains,
            attn_mask=attn_mask,
            is_causal=self.is_causal or is_causal,
            dropout_p=self.attn_drop.p if self.training else 0.0,
            first_layer=self.first_layer,
        )
        return self.proj_drop(self.proj(out.transpose(1, 2).flatten(2))), state

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, gains={self.gains!r}"
