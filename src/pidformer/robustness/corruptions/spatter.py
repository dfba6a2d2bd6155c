"""Spatter: drops of water (severities 1 to 3) or of mud (4 and 5) on the lens."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from pidformer.robustness.corruptions.fields import RandomFields
from pidformer.robustness.corruptions.filters import gaussian

_WATER = (175 / 255, 238 / 255, 238 / 255)  # pale turquoise
_MUD = (63 / 255, 42 / 255, 20 / 255)
_EMBOSS = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))
_BOX = ((1 / 9,) * 3,) * 3
_FARTHEST = 20
_TAN_22, _TAN_67 = math.tan(math.pi / 8), math.tan(3 * math.pi / 8)


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


def neighbours(padded: Tensor) -> list[Tensor]:
    """The nine shifts of (B, H + 2, W + 2), row by row; the fifth is the middle."""
    height, width = padded.shape[-2] - 2, padded.shape[-1] - 2
    return [
        padded[:, row : row + height, column : column + width]
        for row in range(3)
        for column in range(3)
    ]


def canny(layer: Tensor, low: float, high: float) -> Tensor:
    """Canny's edges (bool) from 3 x 3 Sobel gradients, magnitude |dx| + |dy|.

    Kept: local maxima across the edge above `low` that connect (in 8 directions) to one above
    `high`.
    """
    padded = F.pad(layer[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    nw, n, ne, w, _, e, sw, s, se = neighbours(padded)
    across = (ne - nw) + 2 * (e - w) + (se - sw)
    down = (sw - nw) + 2 * (s - n) + (se - ne)
    size = across.abs() + down.abs()
    nw, n, ne, w, _, e, sw, s, se = neighbours(F.pad(size, (1, 1, 1, 1)))
    is_flat = down.abs() < across.abs() * _TAN_22
    is_steep = down.abs() > across.abs() * _TAN_67
    falls = (across < 0) != (down < 0)  # the gradient points up-right or down-left
    diagonal = torch.where(falls, (size > ne) & (size > sw), (size > nw) & (size > se))
    upright = torch.where(is_steep, (size > n) & (size >= s), diagonal)
    is_ridge = torch.where(is_flat, (size > w) & (size >= e), upright) & (size > low)
    edges = is_ridge & (size > high)
    while True:
        near = F.max_pool2d(edges.float()[:, None], 3, stride=1, padding=1)[:, 0] > 0
        grown = near & is_ridge
        if bool((grown == edges).all()):
            return edges
        edges = grown


def distance_to(edges: Tensor, farthest: int) -> Tensor:
    """Euclidean distance of each pixel to the nearest True, at most `farthest` (float64)."""
    height, width = edges.shape[-2:]
    far = float(farthest**2)
    squared = torch.where(edges, 0.0, far).double()
    for axis, size in ((1, height), (2, width)):
        nearest = squared
        for shift in range(1, min(farthest, size - 1) + 1):
            before = squared.narrow(axis, 0, size - shift) + shift**2
            after = squared.narrow(axis, shift, size - shift) + shift**2
            nearest = nearest.clone() if nearest is squared else nearest
            part = nearest.narrow(axis, shift, size - shift)
            torch.minimum(part, before, out=part)
            part = nearest.narrow(axis, 0, size - shift)
            torch.minimum(part, after, out=part)
        squared = nearest
    return squared.clamp(max=far).sqrt()
