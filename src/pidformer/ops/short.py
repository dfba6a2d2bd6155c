"""Attention over short sequences with the control in its epilogue: one kernel per layer.

Images have a few hundred tokens: keys and values of a head stay on chip, and what the control
reads is already there or streams by. Beside q, k, v and u, which attention needs anyway (4 units
of the values' bytes; the float32 integral counts two), a controlled layer reads v_0, v_{l-1} and
the integral and writes the integral (6). SDPA and a separate control pass move 13.

Backward is the control's kernel (10 units, see `ops.epilogue`), then attention's, which reads q, k,
v, g and the gradient of v_l (5) and writes dq, dk, dv (3). One kernel would move two units less,
but attention's fills the registers: on an H200 the control's part took 83 us there, against 50 by
itself. Kept are q, k, v and one float32 per row, and nothing of a control with fixed gains. A gain
of zero moves less: without D, v_{l-1} is not read; without I, the sum's gradient passes through.

Queries, keys and values come packed, as one projection makes them, (B, N, H + 2 Hkv, D), and so
does their gradient. The state's values are views of it, whose gradient is added to dv here.
"""
# B batch, H heads, Hkv key/value heads, N tokens, D head dim

import math
import os
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pidformer.control.gains import Gains
from pidformer.control.pid import PIDState, next_state
from pidformer.ops import dispatch
from pidformer.ops.dispatch import power_of_two
from pidformer.ops.epilogue import (
    gain_gradient,
    keeps_value,
    kernel_inputs,
    state_gradients,
    zero_gradient,
)
from pidformer.ops.launch import KernelOp, cached_by_size, launch
from pidformer.ops.layout import empty_rows, token_rows, unit_rows

_LOG2_E = math.log2(math.e)
_UNCONTROLLED: tuple[Any, ...] = (None, None, None, None, 0.0, 0.0, 0.0, 1.0, False)
"""In place of `kernel_inputs`: attention alone."""
Inputs = tuple[Tensor, Tensor | None, Tensor | None]
"""q (B, H, N, D), k and v (B, Hkv, N, D), of any strides; or (packed, None, None), packed
(B, N, H + 2 Hkv, D), whose gradient comes back packed as well."""


def short_attention(
    inputs: Inputs,
    kv_heads: int,
    state: PIDState | None,
    gains: Gains | None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, PIDState | None]:
    """(u, v, next state): controlled if there is a state, else attention alone.

    u lies in memory as (B, N, H, D). Hand on the returned v, not the one given: its gradient is
    then added where dv is made.
    """
    scale = 1 / math.sqrt(inputs[0].shape[-1]) if scale is None else scale
    read, is_handed_on = _UNCONTROLLED, gains is not None
    if state is not None and gains is not None:
        read = kernel_inputs(state, gains, kv_heads, inputs[0].device)
        is_handed_on = keeps_value(state)
    initial, *_, has_sum = read
    if dispatch.needs_grad(*inputs, *read[:4]):
        u, total, value, initial = _Short.apply(
            *inputs, *read, scale, is_causal, kv_heads, is_handed_on
        )
        if not is_handed_on:
            value = _unpacked(inputs, kv_heads)[2]
    else:
        q, k, value = _unpacked(inputs, kv_heads)
        u, total, _ = short_forward(q, k, value, *read[:-1], scale, is_causal, has_sum, False)
    if state is None or initial is None:
        return u, value, None
    return u, value, next_state(state, initial, total, value)


def split_heads(qkv: Tensor, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Views q (B, H, N, D), k and v (B, Hkv, N, D) of a packed (B, N, H + 2 Hkv, D)."""
    heads = qkv.shape[2] - 2 * kv_heads
    q, k, v = qkv.transpose(1, 2).split((heads, kv_heads, kv_heads), dim=1)
    return q, k, v


def _unpacked(inputs: Inputs, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    first, k, v = inputs
    return split_heads(first, kv_heads) if k is None or v is None else (first, k, v)


class _Short(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, ...]:
        """`is_handed_on`: the values go to the next layer, so that a gradient may come back.

        Only then they are an output: a compiler makes zeros of a gradient that does not come.
        """
        first, k, v, *read, has_sum, scale, is_causal, kv_heads, is_handed_on = inputs
        initial, previous, _integral, gains, *numbers = read
        ctx.set_materialize_grads(False)
        ctx.heads, ctx.numbers, ctx.options = kv_heads, numbers, (scale, is_causal)
        ctx.is_controlled, ctx.is_second = initial is not None, previous is None
        ctx.is_plain = False
        q, key, value = _unpacked((first, k, v), kv_heads)
        ctx.shape, ctx.dtype = q.shape, q.dtype
        u, total, lse = short_forward(q, key, value, *read, scale, is_causal, has_sum, True)
        kept = total if has_sum else None
        if gains is None:  # linear in everything else: nothing to keep for the control
            ctx.save_for_backward(first, k, v, lse, None, None, None, None)
        else:
            ctx.save_for_backward(first, k, v, lse, gains, initial, previous, kept)
        return u, kept, (value if is_handed_on else None), initial

    @staticmethod
    def backward(
        ctx: Any,
        grad: Tensor | None,
        grad_integral: Tensor | None,
        grad_value: Tensor | None,
        grad_initial: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        if grad is None:  # only the state is part of the loss
            grad = zero_gradient(ctx, grad_integral, grad_initial, grad_value)
        if grad is None:
            return (None,) * 16
        first, k, v, lse, gains, initial, previous, total = ctx.saved_tensors
        q, key, value = _unpacked((first, k, v), ctx.heads)
        state_grads: tuple[Tensor | None, ...] = (None, None, None)
        if ctx.is_controlled:
            grad_value, *state_grads = state_gradients(  # type: ignore[assignment]
                ctx, ctx.needs_input_grad[5], grad, grad_integral, grad_value, grad_initial, gains
            )
        packed = short_backward(q, key, value, lse, grad, grad_value, *ctx.options)
        d_gains = None
        if gains is not None and ctx.needs_input_grad[6]:
            d_gains = gain_gradient(grad, value, initial, previous, total, ctx.numbers[3])
        first_grads = (packed, None, None) if k is None else split_heads(packed, ctx.heads)
        return *first_grads, *state_grads, d_gains, *[None] * 9


@partial(KernelOp, "short_attention")
def short_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial: Tensor | None,
    previous: Tensor | None,
    integral: Tensor | None,
    gains: Tensor | None,
    p: float,
    i: float,
    d: float,
    beta: float,
    scale: float,
    is_causal: bool,
    has_sum: bool,
    with_lse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(u, new integral, log2 of each row's weight); the last two only where asked for.

    Controlled if `initial` is given. Without autograd, which `short_attention` adds.
    """
    from pidformer.ops import short_kernels

    (batch, heads, tokens, dim), kv_heads = q.shape, v.shape[1]
    given, steps = zip(*map(unit_rows, (q, k, v, initial, previous)), strict=True)
    total = None
    if has_sum:
        total = empty_rows(q, v.shape, dispatch.sums_type(v, integral))
    lse = q.new_empty(q.shape[:3], dtype=torch.float32) if with_lse else None
    u = empty_rows(q, q.shape)
    tiles, constants = _forward_plan(tokens, dim, heads // kv_heads, is_causal)
    is_rounded = q.is_cuda and q.dtype == torch.float32 and dispatch.is_rounded()
    precision = "tf32" if is_rounded and not with_lse else "ieee"
    constants = (*constants, precision, is_prefetched() and not dispatch.is_interpreted())
    launch(
        short_kernels.short_forward,
        batch * heads * -(-tokens // tiles.rows),
        (*given, token_rows(integral), gains, u, total, lse),
        sum(steps, ()),
        (p, i, d, beta, scale * _LOG2_E),
        (tokens, kv_heads),
        constants,
        tiles,
    )
    return u, total, lse  # type: ignore[return-value]


def is_prefetched() -> bool:
    """Whether the control's inputs are asked for at a program's start, which no GPU has run yet."""
    return os.environ.get("PIDFORMER_PREFETCH") == "1"


@cached_by_size
def _forward_plan(
    tokens: int, dim: int, group: int, is_causal: bool
) -> tuple[dispatch.Tiles, tuple[Any, ...]]:
    """Tiles of `short_forward`, and its constants from GROUP to CAUSAL."""
    pad = power_of_two(dim)
    tiles = dispatch.forward_tiles(tokens, pad)
    tail = tokens if tokens < tiles.keys else tokens % tiles.keys
    tail = min(tiles.keys if is_causal else max(16, power_of_two(tail)), tiles.keys)
    cut = (tiles.rows, tiles.keys, tail, tiles.parts)
    return tiles, (group, dim, pad, *cut, is_causal)


@cached_by_size
def _backward_plan(
    tokens: int, dim: int, group: int, is_causal: bool
) -> tuple[dispatch.Tiles, tuple[Any, ...]]:
    """Tiles of `short_backward`, and its constants from GROUP on."""
    pad = power_of_two(dim)
    tiles = dispatch.backward_tiles(tokens, pad)
    cut = (tiles.rows, tiles.keys, tiles.tail, tiles.turned, tiles.lean)
    return tiles, (group, dim, pad, *cut, is_causal, "ieee")


@partial(KernelOp, "short_attention_backward")
def short_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lse: Tensor,
    grad: Tensor,
    grad_value: Tensor | None,
    scale: float,
    is_causal: bool,
) -> Tensor:
    """Packed (B, N, H + 2 Hkv, D) gradient of q, k, v; `grad_value` is added to that of v."""
    from pidformer.ops import short_kernels

    (batch, heads, tokens, dim), kv_heads = q.shape, v.shape[1]
    packed = q.new_empty((batch, tokens, heads + 2 * kv_heads, dim))
    given, steps = zip(*map(unit_rows, (q, k, v)), strict=True)
    tiles, constants = _backward_plan(tokens, dim, heads // kv_heads, is_causal)
    launch(
        short_kernels.short_backward,
        batch * kv_heads,
        (*given, lse, token_rows(grad), token_rows(grad_value), packed),
        sum(steps, ()),
        (scale * _LOG2_E,),
        (tokens, kv_heads),
        constants,
        tiles,
    )
    return packed
