"""Exclusive self-attention behind a finished attention output, in one pass: y - x (y.n) n.

n is a token's own value v at length 1. In units of the values' bytes, forward reads y and v and
writes u (3), backward reads g, y and v and writes dy and dv (5); y is kept, as it is by SDPA.
No GPU has run it yet, so it is taken only where our kernels are asked for by name ("triton").
"""
# B batch, H heads, Hkv value heads, N tokens, D head dim

from functools import partial
from typing import Any

import torch
from torch import Tensor

from pidformer.control.feedback import Law
from pidformer.control.gains import acts
from pidformer.ops import dispatch
from pidformer.ops.epilogue import by_head, fit_heads
from pidformer.ops.launch import KernelOp, control_plan, launch_rows
from pidformer.ops.layout import empty_rows, token_rows, unit_rows


def excludes(gains: Any) -> bool:
    """Whether a law takes away what of attention's output points along a token's own value."""
    return isinstance(gains, Law) and acts(gains.exclude)


def takes_exclude(law: Law, value: Tensor) -> bool:
    """Whether nothing but the kernels here stands in the way of computing a law on ours."""
    if not acts(law.exclude):
        return True
    return dispatch.selected() == "triton" and fit_heads([law.exclude], value.shape[-3])


def exclude(out: Tensor, value: Tensor, share: float | Tensor) -> Tensor:
    """out (B, H, N, D), value (B, Hkv, N, D), any strides; the result lies as (B, N, H, D)."""
    shares, number = None, 0.0
    if isinstance(share, Tensor):
        (shares,) = by_head([share], value.shape[1], value.device)
        shares = shares.contiguous()
    else:
        number = float(share)
    if not dispatch.needs_grad(out, value, shares):
        return exclude_forward(out, value, shares, number)
    return _Exclude.apply(out, value, shares, number)


class _Exclude(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, out: Tensor, value: Tensor, shares: Tensor | None, share: float
    ) -> Tensor:
        ctx.share = share
        ctx.save_for_backward(out, value, shares)
        return exclude_forward(out, value, shares, share)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        is_learned = ctx.needs_input_grad[2]
        d_out, d_value, parts = exclude_backward(grad, *ctx.saved_tensors, ctx.share, is_learned)
        return d_out, d_value, parts.sum((0, 2)) if is_learned else None, None


@partial(KernelOp, "exclude")
def exclude_forward(out: Tensor, value: Tensor, shares: Tensor | None, share: float) -> Tensor:
    """u; without autograd, which `exclude` adds."""
    from pidformer.ops import epilogue_kernels

    u = empty_rows(out, out.shape)
    given, steps = zip(*map(unit_rows, (out, value)), strict=True)
    tensors = (*given, shares, u)
    launch_rows(epilogue_kernels.exclude_forward, out, value.shape[1], tensors, steps, (share,))
    return u


@partial(KernelOp, "exclude_backward")
def exclude_backward(
    grad: Tensor,
    out: Tensor,
    value: Tensor,
    shares: Tensor | None,
    share: float,
    is_learned: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of out and value, and if `is_learned` parts (B, Hkv, tiles) of the share's."""
    from pidformer.ops import epilogue_kernels

    (batch, heads, tokens, dim), kv_heads = out.shape, value.shape[1]
    tiles, _ = control_plan(tokens, dim, heads // kv_heads)
    shape = (batch, kv_heads, -(-tokens // tiles.rows))
    parts = out.new_empty(shape, dtype=torch.float32) if is_learned else None
    made = (empty_rows(out, out.shape), empty_rows(value, value.shape), parts)
    given, steps = zip(*map(unit_rows, (out, value)), strict=True)
    tensors = (token_rows(grad), *given, shares, *made)
    launch_rows(epilogue_kernels.exclude_backward, out, kv_heads, tensors, steps, (share,))
    return made  # type: ignore[return-value]
