"""One layer of the language model: causal attention with a controller, then an MLP."""
# B batch, N tokens, M keys, C width, H heads, Hkv key/value heads, D head dim

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from pidformer.control.gains import PIDGains
from pidformer.control.pid import PIDState
from pidformer.models.language.config import PIDformerConfig
from pidformer.models.language.masks import Mask
from pidformer.models.language.positions import Rotation, rotated
from pidformer.nn.depth import scan_blocks
from pidformer.nn.gains import LearnedGains, acting_gains, gate_layer, gate_of
from pidformer.ops.attention import feed_back, mixed_values, of_queries, pid_attention, scores
from pidformer.ops.token import TokenControl, plain_weight

State = PIDState | TokenControl | None

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": F.silu,
    "gelu": F.gelu,
    "relu": F.relu,
}


class CausalAttention(nn.Module):
    """x -> o(concat_h(A v + p e + i sum e + d (e - e_previous))), e = beta v_0 - v.

    The cache holds keys and values, as without a controller: the control of a token reads its own
    values in this forward pass and nothing of other tokens.
    """

    def __init__(
        self, config: PIDformerConfig, depth: int, gains: PIDGains | LearnedGains | None
    ) -> None:
        super().__init__()
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        size, bias = config.head_dim, config.attention_bias
        self.depth, self.head_dim = depth, size
        self.gains = gains
        self.first_layer: Any = config.first_layer
        self.register_buffer("gain_share", None, persistent=False)  # see `set_gain_share`
        self.dropout = config.attention_dropout
        self.q_proj = nn.Linear(config.hidden_size, heads * size, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, groups * size, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, groups * size, bias=bias)
        self.o_proj = nn.Linear(heads * size, config.hidden_size, bias=bias)
        self.gate = gate_layer(gains, config.hidden_size, heads * size)

    def forward(
        self,
        x: Tensor,
        state: State,
        *,
        mask: Mask,
        rotation: Rotation | None = None,
        cache: Any = None,
        places: Tensor | None = None,
        keep_kernel: Callable[[Tensor], None] | None = None,
        last: int | None = None,
    ) -> tuple[Tensor, State]:
        """`last` gives the outputs of the last tokens alone, without a cache.

        `keep_kernel` is given the attention matrix (B, H, N, M), which SDPA does not show;
        gradients reach it.
        """
        if cache is not None and keep_kernel is None and self._is_decoding(x, state):
            return self._decode(x, state, mask, rotation, cache, places)  # type: ignore[arg-type]
        if isinstance(state, TokenControl):
            state = PIDState(*(part.to(x.device) for part in state.state()))
        asking, whole = x, state
        if last is not None:
            asking, mask = x[:, -last:], mask.of_last(last)
            if state is not None:
                state = type(state)(*(part[..., -last:, :] for part in state))
        q, k, value = (
            project(given).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, H | Hkv, N, D)
            for project, given in ((self.q_proj, asking), (self.k_proj, x), (self.v_proj, x))
        )
        if rotation is not None:
            cos, sin = rotation
            turned = rotation if last is None else (cos[:, :, -last:], sin[:, :, -last:])
            q, k = rotated(q, turned), rotated(k, rotation)
        gains, dropout = acting_gains(self), self.dropout if self.training else 0.0
        v, gate = mixed_values(value, whole, gains), gate_of(self, asking)
        if cache is not None:
            k, v = cache.update(k, v, self.depth, {"cache_position": places})  # (B, Hkv, M, D)
        if keep_kernel is not None:
            kernel = scores(q, k, mask.attn_mask, mask.is_causal).float().softmax(-1)
            kernel = F.dropout(kernel, dropout)
            keep_kernel(kernel)
            out = kernel.to(v.dtype) @ of_queries(v, q)
            out, state = feed_back(out, value, state, gains, self.first_layer, **gate)
        else:
            out, state = pid_attention(
                q,
                k,
                v,
                state,
                gains,
                attn_mask=mask.attn_mask,
                is_causal=mask.is_causal,
                dropout_p=dropout,
                first_layer=self.first_layer,
                value=value if last is None else value[..., -last:, :],
                **gate,
            )
        return self.o_proj(out.transpose(1, 2).flatten(2)), state

    def _is_decoding(self, x: Tensor, state: State) -> bool:
        """One token, nothing to differentiate, fixed gains; a compiler fuses by itself."""
        return (
            x.shape[1] == 1
            and not torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
            and (state is None or (isinstance(state, TokenControl) and state.device == x.device))
            and (self.gains is None or type(self.gains) is PIDGains)
            and self.gain_share is None
        )

    def _decode(
        self,
        x: Tensor,
        state: TokenControl | None,
        mask: Mask,
        rotation: Rotation | None,
        cache: Any,
        places: Tensor | None,
    ) -> tuple[Tensor, TokenControl | None]:
        """The same for one token behind a cache, in as few operations as there are."""
        heads = (x.shape[0], -1, 1, self.head_dim)
        q, k = self.q_proj(x).view(heads), self.k_proj(x).view(heads)
        gains: PIDGains | None = self.gains  # type: ignore[assignment]
        if gains is None:
            value = self.v_proj(x).view(heads)
        else:
            if state is None:
                state = TokenControl(x.shape[0], k.shape[1], self.head_dim, k, self.first_layer)
            value = state.values(self.v_proj, x, gains)
        if rotation is not None:
            q, k = rotated(q, rotation), rotated(k, rotation)
        keys, values = cache.update(k, value, self.depth, {"cache_position": places})
        is_grouped = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask.attn_mask, enable_gqa=is_grouped
        )
        if gains is not None:
            state.add_(out)  # type: ignore[union-attr]
        return self.o_proj(out.view(x.shape[0], 1, -1)), state


class FeedForward(nn.Module):
    """down(act(up x)), or down(silu(gate x) * up x) for "swiglu"; dropout after each part."""

    def __init__(self, config: PIDformerConfig) -> None:
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        is_gated = config.mlp_type == "swiglu"
        self.gate_proj = nn.Linear(width, inner, bias=bias) if is_gated else None
        self.up_proj = nn.Linear(width, inner, bias=bias)
        self.down_proj = nn.Linear(inner, width, bias=bias)
        self.activation = ACTIVATIONS[config.mlp_type]
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate_proj is not None:
            inner = self.activation(self.gate_proj(x)) * self.up_proj(x)
        elif self.activation is F.relu and (up := self._plain_up(x)) is not None:
            inner = _linear_relu(x, *up)
        else:
            inner = self.activation(self.up_proj(x))
        return dropped(self.dropout, self.down_proj(dropped(self.dropout, inner)))

    def _plain_up(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Weight and bias of `up_proj` where one operation can do its ReLU as well."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return None
        weight = plain_weight(self.up_proj)
        if weight is None or x.dtype != weight.dtype or torch.is_autocast_enabled(x.device.type):
            return None
        bias = self.up_proj._parameters["bias"]
        return None if bias is None else (weight, bias)


class PIDDecoderBlock(GradientCheckpointingLayer):
    """Post-norm x = LN(x + attention(x)); x = LN(x + mlp(x)), or pre-norm x = x + f(LN(x)).

    Called as `x, state = block(x, state, ...)`. `attention_residual=False` leaves out the residual
    around attention, as in the vision block. `last` gives the last tokens alone: all that the last
    layer is asked for when only they are scored.

    Hugging Face switches checkpointing per layer (`gradient_checkpointing`). It is never
    reentrant, whatever is asked for: a reentrant one loses the gradients of the state.
    """

    def __init__(
        self, config: PIDformerConfig, depth: int, gains: PIDGains | LearnedGains | None
    ) -> None:
        super().__init__()
        self.is_post_norm = config.norm_order == "post"
        self.attention_residual = config.attention_residual
        self.self_attn = CausalAttention(config, depth, gains)
        self.mlp = FeedForward(config)
        self.attention_norm = build_norm(config)
        self.mlp_norm = build_norm(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def _gradient_checkpointing_func(
        self, run: Any, x: Tensor, state: State = None
    ) -> tuple[Tensor, State]:
        """What Hugging Face calls around a layer that is checkpointed."""
        return scan_blocks([run], x, state, checkpointing=True)  # type: ignore[arg-type]

    def forward(
        self,
        x: Tensor,
        state: State = None,
        *,
        last: int | None = None,
        **options: Any,
    ) -> tuple[Tensor, State]:
        given = x if self.is_post_norm else self.attention_norm(x)
        mixed, state = self.self_attn(given, state, last=last, **options)
        mixed = dropped(self.dropout, mixed)
        if last is not None:
            x = x[:, -last:]
        x = x + mixed if self.attention_residual else mixed
        if self.is_post_norm:
            x = self.attention_norm(x)
            return self.mlp_norm(x + self.mlp(x)), state
        return x + self.mlp(self.mlp_norm(x)), state


def dropped(dropout: nn.Dropout, x: Tensor) -> Tensor:
    """Dropout that costs nothing when it does nothing."""
    return dropout(x) if dropout.training and dropout.p > 0 else x


def _linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """max(x W^T + b, 0) in one pass over the widest tensor of the model instead of three."""
    flat = torch._addmm_activation(bias, x.flatten(0, -2), weight.t())
    return flat.view(*x.shape[:-1], flat.shape[-1])


def build_norm(config: PIDformerConfig) -> nn.Module:
    kind = nn.RMSNorm if config.norm_type == "rms" else nn.LayerNorm
    return kind(config.hidden_size, eps=config.norm_eps)
