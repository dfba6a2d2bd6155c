"""Rank collapse by layer: similarity and ranks of the tokens, averaged over images."""
# B images, N tokens, C width, L layers

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import torch
from torch import Tensor

from pidformer.analysis.inspection import Model, check_inputs
from pidformer.analysis.measures import RankMeasures, mean_cosine, rank_measures
from pidformer.analysis.tokens import TokenChoice, visit_tokens

Advance = Callable[[int], None]
"""Told how many images have just been done."""


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
    sums: dict[int, Tensor] = {}

    def visit(depth: int, tokens: Tensor) -> None:
        if depth > 0:
            found = measure(tokens).double().sum(-1)
            sums[depth] = sums[depth] + found if depth in sums else found

    for part in images.split(batch_size):
        visit_tokens(model, part, visit, **which)
        if on_progress is not None:
            on_progress(len(part))
    return torch.stack([sums[depth] for depth in sorted(sums)], dim=-1) / len(images)
