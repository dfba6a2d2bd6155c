"""Where the tokens of one image go over depth, in a plane that can be drawn."""
# L layers, N tokens, C width

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pidformer.analysis.tokens import visit_tokens
from pidformer.errors import InputError


class Trajectory(NamedTuple):
    """Tokens over depth in a plane."""

    points: Tensor
    """(L + 1, N, 2): the embedding, then each block's output."""
    explained: float
    """Share of the variance of all points that the plane shows, in [0, 1]."""


def token_trajectory(model: nn.Module, image: Tensor) -> Trajectory:
    """The directions x / |x| of the tokens of one image (C, H, W), at each depth.

    Directions, because the token similarity compares those and lengths grow with depth. The plane
    is that of the first two principal components of all depths together; each axis points where
    its largest coordinate is positive.
    """
    if image.ndim != 3:
        raise InputError(
            f"token_trajectory needs one image (channels, height, width), got {tuple(image.shape)}"
        )
    seen: list[Tensor] = []
    visit_tokens(model, image[None], lambda _, tokens: seen.append(tokens[0]))
    directions = F.normalize(torch.stack(seen).double(), dim=-1)  # (L + 1, N, C)
    centred = directions - directions.mean((0, 1))
    _, scales, axes = torch.linalg.svd(centred.flatten(0, 1), full_matrices=False)
    points = centred @ axes[:2].T
    largest = points.flatten(0, 1).gather(0, points.flatten(0, 1).abs().argmax(0, keepdim=True))
    variance = scales.square()
    explained = float(variance[:2].sum() / variance.sum()) if variance.sum() > 0 else 1.0
    return Trajectory((points * largest.sign()).float(), explained)
