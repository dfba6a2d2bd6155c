"""The control added to a finished attention output in one pass, forward and backward.

For every shape, mask and dropout that SDPA takes. Streams of a controlled layer, in units of the
values' bytes (two bytes per number; the float32 integral counts two): forward reads out, v_l, v_0,
v_{l-1} and the integral (6), writes u and the integral (3). Backward reads g, and from the layer
above the gradients of integral, v_l and v_0 (5), writes those of v_l, integral, v_0 and v_{l-1}
(5). Left to autograd, v_0 and v_l would cost a pass of their own for each sum; here the state is
handed through, so that their gradients meet in this kernel.
"""
# B batch, H heads, Hkv value heads, N tokens, D head dim

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pidformer.control.gains import Gains
from pidformer.control.pid import FirstState, PIDState
from pidformer.ops import dispatch
from pidformer.ops.dispatch import power_of_two

Numbers = tuple[float, float, float, float]


def control(out: Tensor, value: Tensor, state: PIDState, gains: Gains) -> tuple[Tensor, PIDState]:
    """out + p e + i S + d (v_{l-1} - v) and the state for the next layer, as `pid_step` does.

    out (B, H, N, D); value and the state (B, Hkv, N, D), any strides. The result lies in memory as
    (B, N, H, D): merging the heads costs nothing.
    """
    tensor, numbers = kernel_gains(gains, value.shape[1], value.device)
    integral = given_integral(state)
    initial, previous = given_values(state, gains)
    if not dispatch.needs_grad(out, value, initial, integral, previous, tensor):
        u, total = control_forward(out, value, initial, previous, integral, tensor, *numbers)
        return u, PIDState(initial, total, value)
    u, total, initial, value = _Control.apply(
        out, value, initial, previous, integral, tensor, *numbers
    )
    return u, PIDState(initial, total, value)


def kernel_gains(gains: Gains, heads: int, device: torch.device) -> tuple[Tensor | None, Numbers]:
    """Gains as the kernels take them: a float32 tensor (3, Hkv) of p, i, d, or the numbers."""
    terms = (gains.p, gains.i, gains.d)
    beta = float(gains.beta)
    if not any(isinstance(term, Tensor) for term in terms):
        return None, (float(gains.p), float(gains.i), float(gains.d), beta)
    rows = [
        torch.as_tensor(term, dtype=torch.float32, device=device).reshape(-1).expand(heads)
        for term in terms
    ]
    return torch.stack(rows), (0.0, 0.0, 0.0, beta)


def takes_gains(gains: Gains, heads: int) -> bool:
    """Whether these are numbers or one number per value head, with a fixed beta."""
    return not isinstance(gains.beta, Tensor) and all(
        not isinstance(term, Tensor) or term.numel() == 1 or tuple(term.shape) == (heads, 1, 1)
        for term in (gains.p, gains.i, gains.d)
    )


def given_values(state: PIDState, gains: Gains) -> tuple[Tensor, Tensor | None]:
    """v_0 and v_{l-1}; None for the second where v_0 will do.

    That is at the second layer, where both are one tensor, and where no derivative reads it.
    """
    has_derivative = isinstance(gains.d, Tensor) or gains.d != 0
    is_other = has_derivative and state.previous is not state.initial
    return state.initial, state.previous if is_other else None


def given_integral(state: PIDState) -> Tensor | None:
    """The integral; None for the zeros with which `pid_step` starts."""
    integral = state.integral
    if not isinstance(state, FirstState) or integral.requires_grad:
        return integral
    return integral if any(integral.stride()) else None  # what was computed from them has memory


class _Control(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        """Of what `control_forward` takes."""
        out, value, initial, previous, _integral, gains, *numbers = inputs
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.dtype = out.shape, out.dtype
        ctx.numbers, ctx.heads = numbers, value.shape[1]
        ctx.is_second = previous is None
        u, total = control_forward(*inputs)
        if gains is None:  # linear in everything else: nothing to keep
            ctx.save_for_backward()
        else:
            ctx.save_for_backward(gains, value, initial, previous, total)
        return u, total, initial, value

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
            return (None,) * 10
        gains = d_gains = None
        if ctx.saved_tensors:
            gains, value, initial, previous, total = ctx.saved_tensors
            if ctx.needs_input_grad[5]:
                d_gains = gain_gradient(grad, value, initial, previous, total, ctx.numbers[-1])
        d_value, d_integral, d_initial, d_previous = control_backward(
            grad, grad_integral, grad_value, grad_initial, gains, ctx.is_second, ctx.heads,
            *ctx.numbers,
        )  # fmt: skip
        if passes_integral(gains, ctx.numbers[1]):
            d_integral = grad_integral
        previous_grad = None if ctx.is_second else d_previous
        integral_grad = d_integral if ctx.needs_input_grad[4] else None
        state_grads = (d_initial, previous_grad, integral_grad)
        return grad, d_value, *state_grads, d_gains, None, None, None, None


@partial(dispatch.KernelOp, "control")
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
) -> tuple[Tensor, Tensor]:
    """(u, new integral); without autograd, which `control` adds."""
    from pidformer.ops import epilogue_kernels

    (batch, heads, tokens, dim), kv_heads = out.shape, value.shape[1]
    out, value, initial = unit_rows(out), unit_rows(value), unit_rows(initial)
    previous = None if previous is None else unit_rows(previous)
    u, total = _control_outputs(out, value, integral)
    pad = power_of_two(dim)
    tiles = dispatch.control_tiles(tokens, pad)
    grid = (batch * kv_heads * -(-tokens // tiles.rows),)
    with on_device(out):
        dispatch.launched(epilogue_kernels.control_forward)[grid](
            out, value, initial, previous, token_rows(integral), gains, u, total,
            *out.stride()[:3], *value.stride()[:3], *initial.stride()[:3], *strides(previous),
            p, i, d, beta, tokens, kv_heads,
            GROUP=heads // kv_heads, D=dim, BLOCK_D=pad, BLOCK=tiles.rows,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
    return u, total


@control_forward.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor]:
    out, value, _initial, _previous, integral, *_ = inputs
    return _control_outputs(out, value, integral)


def _control_outputs(out: Tensor, value: Tensor, integral: Tensor | None) -> tuple[Tensor, Tensor]:
    kept = dispatch.sums_type(value, integral)
    return empty_rows(out, out.shape), empty_rows(value, value.shape, kept)


@partial(dispatch.KernelOp, "control_backward")
def control_backward(
    grad: Tensor,
    grad_integral: Tensor | None,
    grad_value: Tensor | None,
    grad_initial: Tensor | None,
    gains: Tensor | None,
    is_second: bool,
    kv_heads: int,
    p: float,
    i: float,
    d: float,
    beta: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of value, integral, v_0 and v_{l-1}; that of `out` is `grad` itself.

    Where v_0 stood for v_{l-1} (`is_second`) there is one gradient for both, and the last one is
    empty. So is that of the integral where it is not read (`passes_integral`): it is
    `grad_integral` as it came.
    """
    from pidformer.ops import epilogue_kernels

    batch, heads, tokens, dim = grad.shape
    made = _control_gradients(grad, grad_integral, gains, is_second, kv_heads, i)
    value, integral, initial, previous = made
    pad = power_of_two(dim)
    tiles = dispatch.control_tiles(tokens, pad)
    grads = [token_rows(x) for x in (grad, grad_integral, grad_value, grad_initial)]
    grid = (batch * kv_heads * -(-tokens // tiles.rows),)
    with on_device(grad):
        dispatch.launched(epilogue_kernels.control_backward)[grid](
            *grads, gains,
            value, None if passes_integral(gains, i) else integral,
            initial, None if is_second else previous,
            p, i, d, beta, tokens, kv_heads,
            GROUP=heads // kv_heads, D=dim, BLOCK_D=pad, BLOCK=tiles.rows,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
    return made


@control_backward.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad, grad_integral, _value, _initial, gains, is_second, kv_heads, _p, i, *_ = inputs
    return _control_gradients(grad, grad_integral, gains, is_second, kv_heads, i)


def passes_integral(gains: Tensor | None, i: float) -> bool:
    """Whether the integral is carried on and not read: its gradient goes through as it is."""
    return gains is None and i == 0


def _control_gradients(
    grad: Tensor,
    grad_integral: Tensor | None,
    gains: Tensor | None,
    is_second: bool,
    kv_heads: int,
    i: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape, nothing = (grad.shape[0], kv_heads, *grad.shape[2:]), (0, 0, 0, 0)
    kept = dispatch.sums_type(grad, grad_integral)
    value, initial = empty_rows(grad, shape), empty_rows(grad, shape)
    integral = empty_rows(grad, nothing if passes_integral(gains, i) else shape, kept)
    return value, integral, initial, empty_rows(grad, nothing if is_second else shape)


@partial(dispatch.KernelOp, "gain_gradient")
def gain_gradient(
    grad: Tensor,
    value: Tensor,
    initial: Tensor,
    previous: Tensor | None,
    integral: Tensor,
    beta: float,
) -> Tensor:
    """(3, Hkv): sums of g e, g S_l and g (v_{l-1} - v_l), the gradients of p, i and d."""
    from pidformer.ops import epilogue_kernels

    (batch, heads, tokens, dim), kv_heads = grad.shape, value.shape[1]
    value, initial = unit_rows(value), unit_rows(initial)
    previous = None if previous is None else unit_rows(previous)
    pad = power_of_two(dim)
    tiles = dispatch.control_tiles(tokens, pad)
    chunks = -(-tokens // tiles.rows)
    parts = grad.new_empty((batch, kv_heads, chunks, 3), dtype=torch.float32)
    with on_device(grad):
        dispatch.launched(epilogue_kernels.gain_gradient)[(batch * kv_heads * chunks,)](
            token_rows(grad), value, initial, previous, token_rows(integral), parts,
            *value.stride()[:3], *initial.stride()[:3], *strides(previous),
            beta, tokens, kv_heads,
            GROUP=heads // kv_heads, D=dim, BLOCK_D=pad, BLOCK=tiles.rows,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
    return parts.sum((0, 2)).t().contiguous()


@gain_gradient.register_fake
def _(grad: Tensor, value: Tensor, *_: object) -> Tensor:
    return grad.new_empty((3, value.shape[1]), dtype=torch.float32)


def unit_rows(x: Tensor) -> Tensor:
    """x with the numbers of a head next to each other."""
    return x if x.stride(-1) == 1 else x.contiguous()


def strides(x: Tensor | None) -> tuple[int, ...]:
    """Steps between samples, heads and tokens."""
    return (0, 0, 0) if x is None else x.stride()[:3]


def token_rows(x: Tensor | None) -> Tensor | None:
    """x (B, heads, N, D) such that it lies in memory as (B, N, heads, D)."""
    if x is None or (rows := x.transpose(1, 2)).is_contiguous():
        return x
    return rows.contiguous().transpose(1, 2)


def empty_rows(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """Room for (B, heads, N, D), in memory (B, N, heads, D)."""
    batch, heads, tokens, dim = shape
    return like.new_empty((batch, tokens, heads, dim), dtype=dtype).transpose(1, 2)


def zero_gradient(ctx: Any, *others: Tensor | None) -> Tensor | None:
    """The gradient of an output that nothing used, while something used the state.

    None if nothing did: the layers above had a sum without an integral, whose gradient is none.
    """
    used = next((x for x in others if x is not None), None)
    return None if used is None else used.new_zeros(ctx.shape, dtype=ctx.dtype)


def on_device(x: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device: make it that of x."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
