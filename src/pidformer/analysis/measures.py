"""How alike the tokens of one image are, and how many directions they span."""
# X tokens (..., N, C), s_1 >= s_2 >= ... its singular values

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pidformer.errors import InputError


class RankMeasures(NamedTuple):
    """Four answers to "what is the rank of the tokens", each falling as they collapse."""

    effective_rank: Tensor
    """exp(-sum p log p) with p = s / sum(s): 1 to min(N, C)."""
    stable_rank: Tensor
    """|X|_F^2 / |X|_2^2 = sum(s^2) / s_1^2: at least 1."""
    rank_one_residual: Tensor
    """|X - X_1|_F / |X|_F with X_1 the nearest matrix of rank one: 0 at rank one."""
    mean_token_residual: Tensor
    """|X - 1 m^T|_F / |X|_F with m the mean token: 0 when all tokens are equal.

    1 m^T is the nearest matrix of the form 1 x^T, so this is at least the residual above. The
    literature on rank collapse measures this one.
    """


def mean_cosine(tokens: Tensor) -> Tensor:
    """Mean cosine over ordered pairs of different tokens, (..., N, C) to (...).

    (|sum_i u_i|^2 - N) / (N (N - 1)) with u_i = x_i / |x_i|: no N x N matrix is made.
    """
    count = tokens.shape[-2]
    if count < 2:
        raise InputError("token similarity needs at least two tokens")
    total = F.normalize(tokens, dim=-1).sum(-2)
    return (total.square().sum(-1) - count) / (count * (count - 1))


def rank_measures(tokens: Tensor) -> RankMeasures:
    """The four measures of tokens (..., N, C), each (...), in float64.

    Singular values come from the smaller Gram matrix, right to about 1e-8 of the largest.
    """
    tokens = tokens.double()
    wide = tokens if tokens.shape[-2] <= tokens.shape[-1] else tokens.mT
    squares = torch.linalg.eigvalsh(wide @ wide.mT).clamp(min=0)  # s^2, smallest first
    energy = squares.sum(-1)
    if not bool((energy > 0).all()):
        raise InputError("tokens that are all zero have no rank to measure")
    shares = squares.sqrt() / squares.sqrt().sum(-1, keepdim=True)
    centred = tokens - tokens.mean(-2, keepdim=True)
    return RankMeasures(
        effective_rank=torch.special.entr(shares).sum(-1).exp(),
        stable_rank=energy / squares[..., -1],
        rank_one_residual=(squares[..., :-1].sum(-1) / energy).sqrt(),
        mean_token_residual=(centred.square().sum((-2, -1)) / energy).sqrt(),
    )
