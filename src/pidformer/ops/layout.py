"""Where the numbers of a head lie: what our kernels write, (B, heads, N, D), in memory as
(B, N, heads, D), so that merging the heads costs nothing."""

import torch
from torch import Tensor


def unit_rows(x: Tensor | None) -> tuple[Tensor | None, tuple[int, ...]]:
    """x with the numbers of a head next to each other; steps between samples, heads and tokens."""
    if x is None:
        return None, (0, 0, 0)
    steps = x.stride()
    if steps[3] != 1:
        x = x.contiguous()
        steps = x.stride()
    return x, steps[:3]


def token_rows(x: Tensor | None) -> Tensor | None:
    """x (B, heads, N, D) such that it lies in memory as (B, N, heads, D)."""
    if x is None:
        return None
    _, heads, tokens, dim = x.shape
    if x.stride() == (tokens * heads * dim, dim, heads * dim, 1):
        return x
    rows = x.transpose(1, 2)
    return x if rows.is_contiguous() else rows.contiguous().transpose(1, 2)


def empty_rows(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """Room for (B, heads, N, D), in memory (B, N, heads, D)."""
    _, heads, tokens, dim = shape
    steps = (tokens * heads * dim, dim, heads * dim, 1)
    return like.new_empty_strided(shape, steps, dtype=dtype)
