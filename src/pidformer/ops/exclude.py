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
from pidformer.ops.epilogue import control_plan, empty_rows, token_rows, unit_rows
from pidformer.ops.launch import KernelOp, launch


def excludes(gains: Any) -> bool:
    """Whether a law takes away what of attention's output points along a token's own value."""
    return isinstance(gains, Law) and acts(gains.exclude)


def takes_exclude(law: Law, value: Tensor) -> bool:
    """Whether nothing but the kernels here stands in the way of computing a law on ours."""
    if not acts(law.exclude):
        return True
    share: Any = law.exclude
    heads = value.shape[-3]
    is_number = not isinstance(share, Tensor) or share.numel() == 1
    return dispatch.selected() == "triton" and (is_number or tuple(share.shape) == (heads, 1, 1))


def exclude(out: Tensor, value: Tensor, share: float | Tensor) -> Tensor:
    """out (B, H, N, D), value (B, Hkv, N, D), any strides; the result lies as (B, N, H, D)."""
    shares, number = None, 0.0
    if isinstance(share, Tensor):
        shares = share.to(value.device, torch.float32).reshape(-1).expand(value.shape[1])
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
    _launch(epilogue_kernels.exclude_forward, out, value, (*given, shares, u), steps, share)
    return u


@exclude_forward.register_fake
def _(out: Tensor, *_: object) -> Tensor:
    return empty_rows(out, out.shape)


@partial(KernelOp, "exclude_backward")
def exclude_backward(
    grad: Tensor,
    out: Tensor,
    value: Tensor,
    shares: Tensor | None,
    share: float,
    is_learned: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of out and value, and if `is_learned` parts (B, Hkv, chunks) of the share's."""
    from pidformer.ops import epilogue_kernels

    made = _gradients(out, value, is_learned)
    given, steps = zip(*map(unit_rows, (out, value)), strict=True)
    tensors = (token_rows(grad), *given, shares, *made)
    _launch(epilogue_kernels.exclude_backward, out, value, tensors, steps, share)
    return made


@exclude_backward.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    _grad, out, value, _shares, _share, is_learned = inputs
    return _gradients(out, value, is_learned)


def _gradients(out: Tensor, value: Tensor, is_learned: bool) -> tuple[Tensor, Tensor, Tensor]:
    (batch, heads, tokens, dim), kv_heads = out.shape, value.shape[1]
    chunks = -(-tokens // control_plan(tokens, dim, heads // kv_heads)[0].rows)
    shape = (batch, kv_heads, chunks)
    parts = out.new_empty(shape, dtype=torch.float32) if is_learned else None
    return empty_rows(out, out.shape), empty_rows(value, value.shape), parts  # type: ignore[return-value]


def _launch(
    kernel: Any,
    out: Tensor,
    value: Tensor,
    tensors: tuple[Tensor | None, ...],
    steps: tuple[tuple[int, ...], ...],
    share: float,
) -> None:
    (batch, heads, tokens, dim), kv_heads = out.shape, value.shape[1]
    tiles, constants = control_plan(tokens, dim, heads // kv_heads)
    programs = batch * kv_heads * -(-tokens // tiles.rows)
    numbers, sizes = (share,), (tokens, kv_heads)
    launch(kernel, programs, tensors, sum(steps, ()), numbers, sizes, constants, tiles)
