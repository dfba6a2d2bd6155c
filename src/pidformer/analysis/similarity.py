"""Rank collapse by layer: how alike tokens are, the directions they span, the size of control."""
# B images, N tokens, C width, L layers; X tokens (..., N, C), s_1 >= s_2 >= ... its singular values

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import NamedTuple, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from pidformer import ranks
from pidformer.analysis.inspection import Model, call, check_inputs, inner_model, looking
from pidformer.analysis.tokens import TokenChoice, visit_tokens
from pidformer.errors import InputError
from pidformer.nn.scale import ControlMeter, ControlScale

Advance = Callable[[int], None]
"""Called with the number of images just done."""
SMALLEST = 1e-150
"""A length below counts as zero; float32 has none but zero itself."""


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
    """Mean cosine over ordered pairs of different tokens, (..., N, C) to (...), in float64.

    (|sum_i u_i|^2 - sum_i |u_i|^2) / (N (N - 1)) with u_i = x_i / |x_i|: no N x N matrix is made.
    A token of zeros has the cosine 0 to every other.
    """
    count = tokens.shape[-2]
    if count < 2:
        raise InputError("token similarity needs at least two tokens")
    unit = F.normalize(tokens.double(), dim=-1, eps=SMALLEST)
    total = unit.sum(-2).square().sum(-1) - unit.square().sum((-2, -1))
    return total / (count * (count - 1))


def rank_measures(tokens: Tensor) -> RankMeasures:
    """The four measures of tokens (..., N, C), each (...), in float64.

    Singular values come from the smaller Gram matrix, right to about 1e-8 of the largest.
    """
    tokens = tokens.double()
    lengths = tokens.square().sum((-2, -1))
    if not bool(((lengths > 0) & lengths.isfinite()).all()):
        raise InputError("tokens that are all zero, or not finite, have no rank to measure")
    wide = tokens if tokens.shape[-2] <= tokens.shape[-1] else tokens.mT
    squares = torch.linalg.eigvalsh(wide @ wide.mT).clamp(min=0)  # s^2, smallest first
    energy = squares.sum(-1)
    shares = squares.sqrt() / squares.sqrt().sum(-1, keepdim=True)
    centred = tokens - tokens.mean(-2, keepdim=True)
    return RankMeasures(
        effective_rank=torch.special.entr(shares).sum(-1).exp(),
        stable_rank=energy / squares[..., -1],
        rank_one_residual=(squares[..., :-1].sum(-1) / energy).sqrt(),
        mean_token_residual=(centred.square().sum((-2, -1)) / energy).sqrt(),
    )


def token_similarity(
    model: Model,
    images: Tensor,
    *,
    batch_size: int = 256,
    on_progress: Advance | None = None,
    **which: Unpack[TokenChoice],
) -> Tensor:
    """Mean cosine between the tokens of an image, one number per layer; 1 when all are alike.

    With u_i the tokens' unit vectors, averaged over images:

        mean over i != j of cos(x_i, x_j) = (|sum_i u_i|^2 - N) / (N (N - 1)).

    By default of the block outputs before the next normalisation, all tokens, in fp32.
    `visit_tokens` says what `model` may be and what `of`, `tokens`, `prefix` and `layers` choose;
    they are given by name.
    """
    found = _by_layer(model, images, lambda x: mean_cosine(x)[None], batch_size, on_progress, which)
    return found[0].float()


def token_spectrum(
    model: Model,
    images: Tensor,
    *,
    batch_size: int = 256,
    on_progress: Advance | None = None,
    **which: Unpack[TokenChoice],
) -> RankMeasures:
    """Effective rank, stable rank and two residuals of the tokens, each (L,), mean over images.

    The arguments are those of `token_similarity`.
    """
    return RankMeasures(
        *_by_layer(
            model, images, lambda x: torch.stack(rank_measures(x)), batch_size, on_progress, which
        )
    )


def _by_layer(
    model: Model,
    images: Tensor,
    measure: Callable[[Tensor], Tensor],
    batch_size: int,
    on_progress: Advance | None,
    which: TokenChoice,
) -> Tensor:
    """Means over images of measure(tokens (B, N, C)) -> (M, B), for each layer: (M, L), float64."""
    check_inputs(model, images, batch_size)

    def sums(part: Tensor, _: int) -> Tensor:
        found: dict[int, Tensor] = {}

        def visit(depth: int, tokens: Tensor) -> None:
            if depth > 0:
                found[depth] = measure(tokens).double().sum(-1)

        visit_tokens(model, part, visit, **which)
        if on_progress is not None:
            on_progress(len(part))
        return torch.stack([found[depth] for depth in sorted(found)], dim=-1).cpu()

    parts = ranks.spread(images.split(batch_size), sums)
    return (reduce(add, parts) / len(images)).to(images.device)


def control_scale(
    model: Model, images: Tensor, *, batch_size: int = 256, on_progress: Advance | None = None
) -> ControlScale:
    """The size of the control and of the attention's output in every layer of our own models.

    Both are measured before the heads are merged and projected, in the model's own forward: gains
    that are learned, ramped or different by layer, and the variants of the integral, count as they
    act.
    """
    check_inputs(model, images, batch_size)
    with ControlMeter(inner_model(model)) as meter:
        for part in images.split(batch_size):
            with looking(model, part):
                call(model, part)
            if on_progress is not None:
                on_progress(len(part))
    return meter.scale()
