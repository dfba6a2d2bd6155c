"""Attention of one token over a cache with the control in the same Triton kernel.

For compiled decoding on a GPU: attention and control, which would be a kernel of its own, are one.
The softmax twin takes the same kernel without the control. Off unless `ops.dispatch` is asked for
our kernels (`PIDFORMER_KERNELS=auto`).
"""
# B batch, H heads, Hkv key/value heads, M keys, D head dim

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pidformer.control.gains import PIDGains
from pidformer.control.pid import FirstLayer, PIDState, pid_step
from pidformer.ops import dispatch

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU build
    triton = None

MAX_KEYS = 1024
"""One program reads all keys of a head: beyond this, SDPA's split over keys is worth more."""
MAX_HEAD_DIM = 128
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def can_decode(q: Tensor, k: Tensor, mask: Tensor | None, gains: object) -> bool:
    """Whether `decode_attention` takes this; what else there is goes through `pid_attention`."""
    return (
        triton is not None
        and dispatch.selected() != "torch"
        and q.is_cuda
        and q.shape[-2] == 1
        and k.shape[-2] <= MAX_KEYS
        and q.shape[-1] <= MAX_HEAD_DIM
        and q.dtype in DTYPES
        and q.dtype == k.dtype
        and not torch.is_grad_enabled()
        and (mask is None or (mask.dtype == torch.bool and mask.ndim == 4 and mask.shape[1] == 1))
        and (gains is None or isinstance(gains, PIDGains))
    )


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: PIDState | None,
    gains: PIDGains | None,
    *,
    mask: Tensor | None,
    value: Tensor,
    first_layer: FirstLayer = "free",
) -> tuple[Tensor, PIDState | None]:
    """`pid_attention` of one token: q (B, H, 1, D), keys (B, Hkv, M, D), value (B, Hkv, 1, D)."""
    if gains is None:
        out, _ = _op()(q, k, v, mask, None, None, None, None, 0.0, 0.0, 0.0, 0.0)
        return out, state
    if state is None and first_layer == "controlled":  # e_1 = (beta - 1) v_0, and no difference
        state = PIDState(value, torch.zeros_like(value, dtype=torch.float32), value)
    elif state is None:
        out, _ = _op()(q, k, v, mask, None, None, None, None, 0.0, 0.0, 0.0, 0.0)
        return out, pid_step(value, None, gains, first_layer)[1]
    numbers = (gains.p, gains.i, gains.d, gains.beta)
    out, integral = _op()(q, k, v, mask, value, *state, *numbers)
    return out, PIDState(state.initial, integral, value)


def attend(
    kernel: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    value: Tensor | None,
    initial: Tensor | None,
    integral: Tensor | None,
    previous: Tensor | None,
    p: float,
    i: float,
    d: float,
    beta: float,
) -> tuple[Tensor, Tensor]:
    """Outputs (B, H, 1, D) and the new sum of errors (B, Hkv, 1, D), float32."""
    batch, heads, _, size = q.shape
    groups, keys = k.shape[1], k.shape[2]
    out = q.new_empty(batch, heads, 1, size)
    is_controlled = value is not None
    sums = (
        q.new_empty(batch, groups, 1, size, dtype=torch.float32)
        if is_controlled
        else q.new_empty(0)
    )
    given = [x if x is not None else q for x in (value, initial, integral, previous)]
    strides = [n for x in given for n in (x.stride(0), x.stride(1), x.stride(3))]
    seen = q if mask is None else mask
    kernel[(batch * heads,)](
        q, k, v, seen, *given, out, sums,
        q.stride(0), q.stride(1), q.stride(3),
        k.stride(0), k.stride(1), k.stride(2), k.stride(3),
        v.stride(0), v.stride(1), v.stride(2), v.stride(3),
        0 if mask is None or mask.shape[0] == 1 else mask.stride(0),
        1 if mask is None else mask.stride(3),
        *strides,
        keys, size**-0.5, p, i, d, beta,
        HEADS=heads, GROUP=heads // groups, SIZE=size,
        BLOCK_SIZE=triton.next_power_of_2(size), BLOCK_KEYS=128 if size <= 32 else 64,
        IS_MASKED=mask is not None, IS_CONTROLLED=is_controlled,
        num_warps=4,
    )  # fmt: skip
    return out, sums


if triton is not None:

    @triton.jit
    def decode_kernel(  # type: ignore[no-untyped-def]
        q, k, v, seen, value, initial, integral, previous, out, sums,
        q_b, q_h, q_d, k_b, k_h, k_m, k_d, v_b, v_h, v_m, v_d, seen_b, seen_m,
        value_b, value_h, value_d, initial_b, initial_h, initial_d,
        integral_b, integral_h, integral_d, previous_b, previous_h, previous_d,
        keys, scale, p, i, d, beta,
        HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
        BLOCK_KEYS: tl.constexpr, IS_MASKED: tl.constexpr, IS_CONTROLLED: tl.constexpr,
    ):  # fmt: skip
        """One program a query head: softmax over blocks of keys with a running maximum."""
        row = (tl.program_id(0) // HEADS).to(tl.int64)
        head = tl.program_id(0) % HEADS
        group = head // GROUP
        at = tl.arange(0, BLOCK_SIZE)
        is_in = at < SIZE
        query = tl.load(q + row * q_b + head * q_h + at * q_d, mask=is_in, other=0.0)
        query = query.to(tl.float32) * scale
        k += row * k_b + group * k_h
        v += row * v_b + group * v_h
        largest = -1.0e30
        total = 0.0
        found = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
        for start in range(0, keys, BLOCK_KEYS):
            key = start + tl.arange(0, BLOCK_KEYS)
            is_seen = key < keys
            if IS_MASKED:
                shown = tl.load(seen + row * seen_b + key * seen_m, mask=is_seen, other=0)
                is_seen = is_seen & (shown != 0)
            both = is_seen[:, None] & is_in[None, :]
            block = tl.load(k + key[:, None] * k_m + at[None, :] * k_d, mask=both, other=0.0)
            score = tl.sum(block.to(tl.float32) * query[None, :], axis=1)
            score = tl.where(is_seen, score, -1.0e30)
            now = tl.maximum(largest, tl.max(score, axis=0))
            weight = tl.where(is_seen, tl.exp(score - now), 0.0)
            fade = tl.exp(largest - now)
            block = tl.load(v + key[:, None] * v_m + at[None, :] * v_d, mask=both, other=0.0)
            found = found * fade + tl.sum(weight[:, None] * block.to(tl.float32), axis=0)
            total = total * fade + tl.sum(weight, axis=0)
            largest = now
        found = found / total
        if IS_CONTROLLED:
            own = tl.load(
                value + row * value_b + group * value_h + at * value_d, mask=is_in, other=0.0
            ).to(tl.float32)
            first = tl.load(
                initial + row * initial_b + group * initial_h + at * initial_d,
                mask=is_in, other=0.0,
            ).to(tl.float32)  # fmt: skip
            before = tl.load(
                previous + row * previous_b + group * previous_h + at * previous_d,
                mask=is_in, other=0.0,
            ).to(tl.float32)  # fmt: skip
            summed = tl.load(
                integral + row * integral_b + group * integral_h + at * integral_d,
                mask=is_in, other=0.0,
            ).to(tl.float32)  # fmt: skip
            error = beta * first - own
            summed += error
            found += p * error + i * summed + d * (before - own)
            if head % GROUP == 0:
                place = (row * (HEADS // GROUP) + group) * SIZE + at
                tl.store(sums + place, summed, mask=is_in)
        place = (row * HEADS + head) * SIZE + at
        tl.store(out + place, found.to(out.dtype.element_ty), mask=is_in)

    @torch.library.triton_op("pidformer::decode_attention", mutates_args=())
    def _decode_attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        value: Tensor | None,
        initial: Tensor | None,
        integral: Tensor | None,
        previous: Tensor | None,
        p: float,
        i: float,
        d: float,
        beta: float,
    ) -> tuple[Tensor, Tensor]:
        kernel = torch.library.wrap_triton(decode_kernel)
        return attend(kernel, q, k, v, mask, value, initial, integral, previous, p, i, d, beta)


def _op() -> Any:
    return torch.ops.pidformer.decode_attention
