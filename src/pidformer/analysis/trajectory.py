"""Where the tokens of one image go over depth, in a plane that can be drawn."""
# L layers, N tokens, C width

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pidformer.analysis.inspection import Model
from pidformer.analysis.tokens import visit_tokens
from pidformer.errors import InputError


class Trajectory(NamedTuple):
    """Tokens over depth in a plane."""

    points: Tensor
    """(L + 1, N, 2): the embedding, then each block's output."""
    explained: float
    """Share of the variance of all points that the plane shows, in [0, 1]."""


def token_trajectory(model: Model, image: Tensor) -> Trajectory:
    """The directions x / |x| of the tokens of one image (C, H, W) or text (N,), at each depth.

    Directions, because the token similarity compares those and lengths grow with depth. The plane
    is that of the first two principal components of all depths together; each axis points where
    its largest coordinate is positive.
    """
    return _in_one_plane([_centred(model, image)])[0]


def joint_trajectories(models: Sequence[Model], image: Tensor) -> list[Trajectory]:
    """`token_trajectory` of several models in one plane.

    Each model's directions are centred at their own mean over depths and tokens; the plane is that
    of the first two principal components of all the centred directions together, so distances
    compare between models. Models of different widths share no space: each then has its own plane.
    """
    if not models:
        raise InputError("give at least one model")
    centred = [_centred(model, image) for model in models]
    if len({directions.shape[-1] for directions in centred}) > 1:
        return [_in_one_plane([directions])[0] for directions in centred]
    return _in_one_plane(centred)


def _centred(model: Model, image: Tensor) -> Tensor:
    """Directions of the tokens less their mean, (L + 1, N, C), float64."""
    is_text = image.ndim == 1 and not image.is_floating_point()
    if image.ndim != 3 and not is_text:
        raise InputError(
            "token_trajectory needs one image (channels, height, width) or one text (tokens,), "
            f"got {tuple(image.shape)}"
        )
    seen: list[Tensor] = []
    visit_tokens(model, image[None], lambda _, tokens: seen.append(tokens[0]))
    directions = F.normalize(torch.stack(seen).double(), dim=-1)
    return directions - directions.mean((0, 1))


def _in_one_plane(groups: Sequence[Tensor]) -> list[Trajectory]:
    """Each group (L + 1, N, C) in the plane of the first two components of all."""
    _, _, axes = torch.linalg.svd(torch.cat([g.flatten(0, 1) for g in groups]), full_matrices=False)
    flat = torch.cat([(group @ axes[:2].T).flatten(0, 1) for group in groups])
    signs = flat.gather(0, flat.abs().argmax(0, keepdim=True)).sign()  # (1, 2)
    found = []
    for group in groups:
        points = group @ axes[:2].T * signs
        variance = group.square().sum()
        explained = float(points.square().sum() / variance) if variance > 0 else 1.0
        found.append(Trajectory(points.float().cpu(), explained))
    return found
