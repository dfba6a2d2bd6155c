"""How alike the tokens of an image are: the measure of rank collapse."""
# B images, N tokens, C width

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pidformer.analysis.tokens import visit_tokens
from pidformer.errors import InputError


def token_similarity(model: nn.Module, images: Tensor, *, batch_size: int = 256) -> Tensor:
    """Mean cosine between the tokens of an image, one number a layer; 1 when all are alike.

    After each block, with u_i the tokens' unit vectors, averaged over images:

        mean over i != j of cos(x_i, x_j) = (|sum_i u_i|^2 - N) / (N (N - 1)).

    `model` is a `PixelModel` (images in [0, 1]) or a `PIDVisionTransformer` (normalised images).
    Block outputs before the next normalisation, all tokens, in fp32.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    sums: dict[int, Tensor] = {}

    def visit(depth: int, tokens: Tensor) -> None:
        if depth > 0:
            sums[depth] = sums.get(depth, 0) + mean_cosine(tokens).sum()

    for part in images.split(batch_size):
        visit_tokens(model, part, visit)
    return torch.stack([sums[depth] for depth in sorted(sums)]) / len(images)


def mean_cosine(tokens: Tensor) -> Tensor:
    """Mean cosine over ordered pairs of different tokens, (..., N, C) to (...)."""
    count = tokens.shape[-2]
    if count < 2:
        raise InputError("token similarity needs at least two tokens")
    total = F.normalize(tokens, dim=-1).sum(-2)
    return (total.square().sum(-1) - count) / (count * (count - 1))
