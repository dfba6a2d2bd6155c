"""Rank collapse by layer: similarity and ranks of the tokens, averaged over images."""
# B images, N tokens, C width, L layers

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pidformer.analysis.inspection import Model, check_inputs
from pidformer.analysis.measures import RankMeasures, mean_cosine, rank_measures
from pidformer.analysis.tokens import TokensOf, Which, visit_tokens

Advance = Callable[[int], None]
"""Told how many images have just been done."""


def token_similarity(
    model: Model,
    images: Tensor,
    *,
    of: TokensOf = "blocks",
    tokens: Which = "all",
    prefix: int | None = None,
    layers: Sequence[nn.Module] | None = None,
    batch_size: int = 256,
    on_progress: Advance | None = None,
) -> Tensor:
    """Mean cosine between the tokens of an image, one number a layer; 1 when all are alike.

    With u_i the tokens' unit vectors, averaged over images:

        mean over i != j of cos(x_i, x_j) = (|sum_i u_i|^2 - N) / (N (N - 1)).

    By default of the block outputs before the next normalisation, all tokens, in fp32.
    `visit_tokens` says what `model` may be and what `of`, `tokens`, `prefix` and `layers` choose.
    """
    return _by_layer(
        model,
        images,
        lambda tokens: mean_cosine(tokens)[None],
        batch_size=batch_size,
        on_progress=on_progress,
        of=of,
        tokens=tokens,
        prefix=prefix,
        layers=layers,
    )[0].float()


def token_spectrum(
    model: Model,
    images: Tensor,
    *,
    of: TokensOf = "blocks",
    tokens: Which = "all",
    prefix: int | None = None,
    layers: Sequence[nn.Module] | None = None,
    batch_size: int = 256,
    on_progress: Advance | None = None,
) -> RankMeasures:
    """Effective rank, stable rank and two residuals of the tokens, each (L,), mean over images.

    The arguments are those of `token_similarity`.
    """
    return RankMeasures(
        *_by_layer(
            model,
            images,
            lambda tokens: torch.stack(rank_measures(tokens)),
            batch_size=batch_size,
            on_progress=on_progress,
            of=of,
            tokens=tokens,
            prefix=prefix,
            layers=layers,
        )
    )


def _by_layer(
    model: Model,
    images: Tensor,
    measure: Callable[[Tensor], Tensor],
    *,
    batch_size: int,
    on_progress: Advance | None,
    **which: object,
) -> Tensor:
    """Means over images of measure(tokens (B, N, C)) -> (M, B), for each layer: (M, L), float64."""
    check_inputs(model, images, batch_size)
    sums: dict[int, Tensor] = {}

    def visit(depth: int, tokens: Tensor) -> None:
        if depth > 0:
            found = measure(tokens).double().sum(-1)
            sums[depth] = sums[depth] + found if depth in sums else found

    for part in images.split(batch_size):
        visit_tokens(model, part, visit, **which)  # type: ignore[arg-type]
        if on_progress is not None:
            on_progress(len(part))
    return torch.stack([sums[depth] for depth in sorted(sums)], dim=-1) / len(images)
