"""Ranks and outer eigenvalues of attention from products A Z alone: no N x N matrix is made.

A product is one call of `scaled_dot_product_attention` with Z in place of the values, A^T Z its
gradient; each costs what attention costs, and the memory of the values. With as many columns as a
head has dimensions (and with fewer tokens than that, exactly):

    |A|_F^2   = |A R|_F^2 + E |A (1 - R R^T) z|^2,  R the leading right singular directions, of
                                                    which the random z must know nothing
    |A|_2     = largest singular value of A^T U,  U spans (A A^T)^2 Q
    kappa     ~ eigenvalues of Q^T A Q, the outer ones first (of causal attention: its diagonal),
                where Q spans A applied often to random columns
"""
# B inputs, H heads, N tokens, D columns, L layers

from functools import reduce
from operator import add
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pidformer import ranks
from pidformer.analysis.inspection import AttentionCall, Model, check_inputs, visit_attention
from pidformer.analysis.similarity import Advance
from pidformer.analysis.spectrum import check_finite, eigenvalues, split_unit

SWEEPS = 4
"""Products before the subspace is read."""
TURNS = 2
"""Products with A A^T before the largest singular value is read: A is far from normal."""
ROWS = 256
"""Rows of causal attention at a time, for its diagonal."""


class AttentionMeasures(NamedTuple):
    """Measures of each layer's attention, means over inputs and heads, (L,), float64."""

    rank: Tensor
    """Stable rank |A|_F^2 / |A|_2^2: 1 when every token attends alike, N when each to itself."""
    second: Tensor
    """Largest |kappa| after the eigenvalue 1: what of the tokens' differences one layer keeps."""
    lowest: Tensor
    """Smallest Re kappa of those that were found."""


def attention_measures(
    model: Model,
    images: Tensor,
    *,
    batch_size: int = 16,
    seed: int = 0,
    on_progress: Advance | None = None,
) -> AttentionMeasures:
    """Rank and outer eigenvalues of every layer's attention, measured while the model runs.

    Nothing of a layer is kept but three numbers; `attention_spectrum` gives all eigenvalues.
    """
    check_inputs(model, images, batch_size)

    def sums(part: Tensor, start: int) -> Tensor:
        draw = torch.Generator().manual_seed(seed + start)
        found: list[Tensor] = []

        def visit(call: AttentionCall) -> None:
            found.append(_measured(call, draw).mean(-1).sum(-1).cpu())  # (3, B, H) -> (3,)

        visit_attention(model, part, visit)
        if on_progress is not None:
            on_progress(len(part))
        return torch.stack(found, -1)

    parts = ranks.spread(images.split(batch_size), sums)
    return AttentionMeasures(*(reduce(add, parts) / len(images)))


def _measured(call: AttentionCall, draw: torch.Generator) -> Tensor:
    """Rank, second and lowest eigenvalue, (3, B, H)."""
    batch, heads, tokens, width = call.seen.shape
    columns = min(tokens, 64 if call.query is None else max(16, width))
    dtype = torch.promote_types(call.seen.dtype, torch.float32)

    def random() -> Tensor:
        drawn = torch.randn(batch, heads, tokens, columns, generator=draw)
        return drawn.to(call.seen.device, dtype)

    start = random()
    start[..., 0] = 1  # the eigenvector of 1, and often near the largest singular vector
    q = _orthogonal(start)
    for _ in range(SWEEPS):
        q = _orthogonal(_product(call, q))
    check_finite(q)
    left = q
    for _ in range(TURNS):
        left = _orthogonal(_product(call, _orthogonal(_transposed(call, left))))
    right = _transposed(call, left)
    largest = torch.linalg.matrix_norm(right, ord=2).square()
    right, z = _orthogonal(right), random()
    rest = _product(call, z - right @ (right.mT @ z)).square().sum((-2, -1)) / columns
    rank = (_product(call, right).square().sum((-2, -1)) + rest) / largest
    kappas = _diagonal(call) if call.is_causal else None
    if kappas is None:
        kappas = eigenvalues(q.mT @ _product(call, q))
    second = split_unit(kappas)[1].amax(-1)
    return torch.stack([x.double().cpu() for x in (rank, second, kappas.real.amin(-1))])


def _orthogonal(columns: Tensor) -> Tensor:
    """An orthonormal basis, row by row in memory: of LAPACK's columns SDPA makes the matrix A."""
    return torch.linalg.qr(columns).Q.contiguous()


def _product(call: AttentionCall, z: Tensor) -> Tensor:
    """A z, (B, H, N, D)."""
    if call.query is None:
        return call.weights.to(z.dtype) @ z
    q, k = call.queries_and_keys(z.dtype)
    mask = call.attn_mask
    mask = mask.to(z.dtype) if mask is not None and mask.dtype != torch.bool else mask
    return F.scaled_dot_product_attention(
        q, k, z, attn_mask=mask, is_causal=call.is_causal, scale=call.scale
    )


def _transposed(call: AttentionCall, z: Tensor) -> Tensor:
    """A^T z: attention is linear in its values."""
    with torch.enable_grad():
        values = torch.zeros_like(z, requires_grad=True)
        (found,) = torch.autograd.grad(_product(call, values), values, z)
    return found


def _diagonal(call: AttentionCall) -> Tensor:
    """The diagonal of causal attention (B, H, N), rows after rows."""
    q, k = call.queries_and_keys(torch.float64)
    q = q * (q.shape[-1] ** -0.5 if call.scale is None else call.scale)
    parts = []
    for start in range(0, q.shape[-2], ROWS):
        scores = q[..., start : start + ROWS, :] @ k[..., : start + ROWS, :].mT
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(start + 1)
        total = scores.masked_fill(later, -torch.inf).logsumexp(-1)
        parts.append((scores.diagonal(start, -2, -1) - total).exp())
    return torch.cat(parts, -1).cpu()
