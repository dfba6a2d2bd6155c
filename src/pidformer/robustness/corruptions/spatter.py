"""Spatter: drops of water (severities 1 to 3) or of mud (4 and 5) on the lens."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from pidformer.robustness.corruptions.edges import canny, distance_to, neighbours
from pidformer.robustness.corruptions.fields import RandomFields
from pidformer.robustness.corruptions.filters import gaussian

_WATER = (175 / 255, 238 / 255, 238 / 255)  # pale turquoise
_MUD = (63 / 255, 42 / 255, 20 / 255)
_EMBOSS = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))
_BOX = ((1 / 9,) * 3,) * 3
_FARTHEST = 20


def spatter(images: Tensor, constants: Mapping[str, float], draws: RandomFields) -> Tensor:
    """A liquid layer, N(mean, std) smoothed with `sigma` and 0 below `threshold`, seen as drops.

    Mud: brown with weight Gaussian(layer > threshold; strength), 0 below 0.8.
    Water: turquoise added with weight strength * relief / max(relief); see `relief`.
    """
    height, width = images.shape[-2:]
    layer = draws.normal("liquid", height, width) * constants["std"] + constants["mean"]
    layer = gaussian(layer, constants["sigma"])
    if constants["is_mud"]:
        weight = gaussian((layer > constants["threshold"]).double(), constants["strength"])
        weight = torch.where(weight < 0.8, 0.0, weight)[:, None]
        return images * (1 - weight) + _colour(_MUD, images) * weight
    layer = torch.where(layer < constants["threshold"], 0.0, layer)
    lit = relief((layer * 255).floor().clamp_(0, 255))
    weight = lit / lit.amax((1, 2), keepdim=True).clamp(min=1)
    return images + _colour(_WATER, images) * (constants["strength"] * weight)[:, None]


def relief(layer: Tensor) -> Tensor:
    """Light on the drops of an 8-bit layer (B, H, W).

    The distance to the drops' edges (Canny 50, 150; at most 20 pixels), averaged over 3 x 3, its
    histogram equalised, embossed, averaged again, times the layer; 8 bits after each step.
    """
    distance = distance_to(canny(layer, 50, 150), _FARTHEST)
    distance = filter_3x3(distance, _BOX).add(1e-6).floor()
    lit = filter_3x3(equalise(distance), _EMBOSS).clamp(0, 255)
    return layer * filter_3x3(lit, _BOX).round()


def equalise(images: Tensor) -> Tensor:
    """Histogram equalisation of 8-bit images: 255 * (the share below or at a level), the lowest
    level taken as none of it; an image of one level stays as it is."""
    levels = images.long().flatten(1)
    counts = torch.zeros(len(levels), 256, dtype=torch.float64, device=images.device)
    counts.scatter_add_(1, levels, counts.new_ones(()).expand(levels.shape))
    lowest = counts.gather(1, levels.amin(1, keepdim=True))
    total = levels.shape[1]
    scale = 255 / (total - lowest).clamp(min=1)
    table = ((counts.cumsum(1) - lowest) * scale).round().clamp(0, 255)
    return torch.where((lowest == total)[:, None], images, table.gather(1, levels).view_as(images))


def filter_3x3(images: Tensor, kernel: tuple[tuple[float, ...], ...]) -> Tensor:
    """Correlation of (B, H, W) with a 3 x 3 kernel, mirrored at the edge pixels."""
    padded = F.pad(images[:, None], (1, 1, 1, 1), mode="reflect")[:, 0]
    weights = [weight for row in kernel for weight in row]
    total = torch.zeros_like(images)
    for weight, part in zip(weights, neighbours(padded), strict=True):
        total = total + weight * part
    return total


def _colour(rgb: tuple[float, float, float], like: Tensor) -> Tensor:
    return torch.tensor(rgb, dtype=torch.float64, device=like.device).view(1, 3, 1, 1)
