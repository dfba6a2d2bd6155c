"""The control added to a finished attention output in one pass, forward and backward.

For every shape, mask and dropout that SDPA takes. Streams of a controlled layer, in units of the
values' bytes (two bytes per number; the float32 integral counts two): forward reads out, v_l, v_0,
v_{l-1} and the integral (6), writes u and the integral (3). Backward reads g, and from the layer
above the gradients of integral, v_l and v_0 (5), writes those of v_l, integral, v_0 and v_{l-1}
(5). Left to autograd, v_0 and v_l would cost a pass of their own for each sum; here the state is
handed through, so that their gradients meet in this kernel.

Where no layer has an integral (`SumlessState`) there is none: forward reads 4 and writes 1, and
backward neither reads nor writes its gradient. Without derivatives (`ReferenceState`) v_{l-1} and
its gradient go too.
"""
# B batch, H heads, Hkv value heads, N tokens, D head dim

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pidformer.control.gains import Gains, PIDGains
from pidformer.control.pid import (
    FirstState,
    PIDState,
    ReferenceState,
    SumlessState,
    check_terms,
    next_state,
)
from pidformer.ops import dispatch, plain
from pidformer.ops.launch import KernelOp, control_plan, launch, launch_rows
from pidformer.ops.layout import empty_rows, token_rows, unit_rows

Numbers = tuple[float, float, float, float]


def control(
    out: Tensor, value: Tensor, state: PIDState, gains: Gains, *, is_plain: bool = False
) -> tuple[Tensor, PIDState]:
    """out + p e + i S + d (v_{l-1} - v) and the state for the next layer, as `pid_step` does.

    out (B, H, N, D); value and the state (B, Hkv, N, D), any strides. The result lies in memory as
    (B, N, H, D): merging the heads costs nothing. With `is_plain` PyTorch's kernels compute it
    (`ops.plain`), without gradients in the memory of `out`.
    """
    inputs = (out, value, *kernel_inputs(state, gains, value.shape[-3], value.device))
    if not dispatch.needs_grad(*inputs[:6]):
        if is_plain:
            u, total = plain.control_forward(*inputs, is_ours=True)
        else:
            u, total = control_forward(*inputs)
        return u, next_state(state, state.initial, total, value)
    u, total, initial, value = _Control.apply(*inputs, keeps_value(state), is_plain)
    return u, next_state(state, initial, total, value)


def keeps_value(state: PIDState) -> bool:
    """Whether a layer's values are handed on, for the next one's derivative."""
    return not isinstance(state, ReferenceState)


def kernel_gains(gains: Gains, heads: int, device: torch.device) -> tuple[Tensor | None, Numbers]:
    """Gains as the kernels take them: a float32 tensor (3, Hkv) of p, i, d, or the numbers."""
    terms = (gains.p, gains.i, gains.d)
    beta = float(gains.beta)
    if not any(isinstance(term, Tensor) for term in terms):
        return None, (float(gains.p), float(gains.i), float(gains.d), beta)
    return torch.stack(by_head(terms, heads, device)), (0.0, 0.0, 0.0, beta)


def by_head(terms: Iterable[float | Tensor], heads: int, device: torch.device) -> list[Tensor]:
    """Coefficients in float32, each one number per value head: (Hkv,)."""
    return [
        torch.as_tensor(term, dtype=torch.float32, device=device).reshape(-1).expand(heads)
        for term in terms
    ]


def takes_gains(gains: Gains, heads: int) -> bool:
    """Whether these are numbers or one number per value head, with a fixed beta."""
    if type(gains) is PIDGains:
        return True
    return not isinstance(gains.beta, Tensor) and fit_heads((gains.p, gains.i, gains.d), heads)


def fit_heads(terms: Iterable[object], heads: int) -> bool:
    """Whether each coefficient is a number, or one number per value head."""
    return all(
        not isinstance(term, Tensor) or term.numel() == 1 or tuple(term.shape) == (heads, 1, 1)
        for term in terms
    )


def kernel_inputs(
    state: PIDState, gains: Gains, heads: int, device: torch.device
) -> tuple[Any, ...]:
    """What the kernels take of a state and gains: v_0, v_{l-1}, the integral, learned gains, four
    numbers, and whether layers sum their errors.

    v_{l-1} is None where v_0 will do: at the second layer, where both are one tensor, and where no
    derivative reads it. The integral is None for the zeros with which `pid_step` starts.
    """
    check_terms(state, gains)
    initial, integral, previous = state
    has_sum = not isinstance(state, SumlessState)
    has_derivative = isinstance(gains.d, Tensor) or gains.d != 0
    is_other = has_derivative and keeps_value(state) and previous is not initial
    is_zero = isinstance(state, FirstState) and not integral.requires_grad
    if is_zero and has_sum:
        is_zero = not any(integral.stride())  # what was computed from them has memory
    sums = integral if has_sum and not is_zero else None
    learned, numbers = kernel_gains(gains, heads, device)
    return initial, previous if is_other else None, sums, learned, *numbers, has_sum


class _Control(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, ...]:
        """Of what `control_forward` takes; whether the values are handed on; on whose kernels."""
        *given, is_handed_on, is_plain = inputs
        out, value, initial, previous, _integral, gains, *numbers, has_sum = given
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.dtype = out.shape, out.dtype
        ctx.numbers, ctx.heads = numbers, value.shape[-3]
        ctx.is_second, ctx.is_plain = previous is None, is_plain
        u, total = (plain.control_forward if is_plain else control_forward)(*given)
        kept = total if has_sum else None
        if gains is not None:  # else linear in everything: nothing to keep
            ctx.save_for_backward(gains, value, initial, previous, kept)
        return u, kept, initial, (value if is_handed_on else None)

    @staticmethod
    def backward(
        ctx: Any,
        grad: Tensor | None,
        grad_integral: Tensor | None,
        grad_initial: Tensor | None,
        grad_value: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        if grad is None:  # only the state is part of the loss
            grad = zero_gradient(ctx, grad_integral, grad_initial, grad_value)
        if grad is None:
            return (None,) * 13
        gains = d_gains = None
        if ctx.saved_tensors:
            gains, value, initial, previous, total = ctx.saved_tensors
            if ctx.needs_input_grad[5]:
                d_gains = gain_gradient(grad, value, initial, previous, total, ctx.numbers[-1])
        d_value, *state_grads = state_gradients(
            ctx, ctx.needs_input_grad[4], grad, grad_integral, grad_value, grad_initial, gains
        )
        return grad, d_value, *state_grads, d_gains, *[None] * 7


def state_gradients(
    ctx: Any,
    is_summed: bool,
    grad: Tensor,
    grad_integral: Tensor | None,
    grad_value: Tensor | None,
    grad_initial: Tensor | None,
    gains: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Gradients of v_l, v_0, v_{l-1} and the sum, which is asked for if it `is_summed`."""
    # A sum that is carried on and not read: its gradient goes through as it is.
    is_passed_on = gains is None and ctx.numbers[1] == 0
    writes_sum = is_summed and not is_passed_on
    backward = plain.control_backward if ctx.is_plain else control_backward
    d_value, d_integral, d_initial, d_previous = backward(
        grad, grad_integral, grad_value, grad_initial, gains, ctx.is_second, writes_sum, ctx.heads,
        *ctx.numbers,
    )  # fmt: skip
    if not writes_sum:
        d_integral = grad_integral if is_summed else None
    return d_value, d_initial, None if ctx.is_second else d_previous, d_integral


@partial(KernelOp, "control")
def control_forward(
    out: Tensor,
    value: Tensor,
    initial: Tensor,
    previous: Tensor | None,
    integral: Tensor | None,
    gains: Tensor | None,
    p: float,
    i: float,
    d: float,
    beta: float,
    has_sum: bool,
) -> tuple[Tensor, Tensor]:
    """(u, new integral if it `has_sum`); without autograd, which `control` adds."""
    from pidformer.ops import epilogue_kernels

    total = None
    if has_sum:
        total = empty_rows(value, value.shape, dispatch.sums_type(value, integral))
    u = empty_rows(out, out.shape)
    given, steps = zip(*map(unit_rows, (out, value, initial, previous)), strict=True)
    tensors, numbers = (*given, token_rows(integral), gains, u, total), (p, i, d, beta)
    launch_rows(epilogue_kernels.control_forward, out, value.shape[1], tensors, steps, numbers)
    return u, total  # type: ignore[return-value]


@partial(KernelOp, "control_backward")
def control_backward(
    grad: Tensor,
    grad_integral: Tensor | None,
    grad_value: Tensor | None,
    grad_initial: Tensor | None,
    gains: Tensor | None,
    is_second: bool,
    writes_sum: bool,
    kv_heads: int,
    p: float,
    i: float,
    d: float,
    beta: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of value, integral, v_0 and v_{l-1}; that of `out` is `grad` itself.

    Where v_0 stood for v_{l-1} (`is_second`) there is one gradient for both, and the last one is
    not made. Nor is that of the integral unless asked for (`writes_sum`).
    """
    from pidformer.ops import epilogue_kernels

    shape = (grad.shape[0], kv_heads, *grad.shape[2:])
    kept = dispatch.sums_type(grad, grad_integral)
    d_integral = empty_rows(grad, shape, kept) if writes_sum else None
    d_previous = None if is_second else empty_rows(grad, shape)
    made = (empty_rows(grad, shape), d_integral, empty_rows(grad, shape), d_previous)
    given = map(token_rows, (grad, grad_integral, grad_value, grad_initial))
    tensors, numbers = (*given, gains, *made), (p, i, d, beta)
    launch_rows(epilogue_kernels.control_backward, grad, kv_heads, tensors, (), numbers)
    return made  # type: ignore[return-value]


@partial(KernelOp, "gain_gradient")
def gain_gradient(
    grad: Tensor,
    value: Tensor,
    initial: Tensor,
    previous: Tensor | None,
    integral: Tensor | None,
    beta: float,
) -> Tensor:
    """(3, Hkv): sums of g e, g S_l and g (v_{l-1} - v_l), the gradients of p, i and d.

    Without a sum that of i is 0.
    """
    from pidformer.ops import epilogue_kernels

    (batch, heads, tokens, dim), kv_heads = grad.shape, value.shape[1]
    given, steps = zip(*map(unit_rows, (value, initial, previous)), strict=True)
    tiles, constants = control_plan(tokens, dim, heads // kv_heads)
    chunks = -(-tokens // tiles.rows)
    parts = grad.new_empty((batch, kv_heads, chunks, 3), dtype=torch.float32)
    kernel, programs = epilogue_kernels.gain_gradient, batch * kv_heads * chunks
    tensors = (token_rows(grad), *given, token_rows(integral), parts)
    launch(kernel, programs, tensors, sum(steps, ()), (beta,), (tokens, kv_heads), constants, tiles)
    return parts.sum((0, 2)).t().contiguous()


def zero_gradient(ctx: Any, *others: Tensor | None) -> Tensor | None:
    """The gradient of an output that nothing used, while something used the state.

    None if nothing did: the layers above had a sum without an integral, whose gradient is none.
    """
    used = next((x for x in others if x is not None), None)
    return None if used is None else used.new_zeros(ctx.shape, dtype=ctx.dtype)
