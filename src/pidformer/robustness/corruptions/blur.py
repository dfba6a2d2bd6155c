"""Blurs: defocus, motion, zoom and Gaussian, one linear filter per image; glass, which shuffles."""

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from pidformer.robustness.corruptions.filters import (
    RandomFields,
    correlate,
    gaussian,
    resize_centre,
    smoothing,
    to_8_bit,
)


def defocus_blur(images: Tensor, draws: RandomFields, radius: float, alias_sigma: float) -> Tensor:
    """Correlation with a disk of this radius whose rim a small Gaussian softens."""
    kernel = torch.from_numpy(_disk(radius, alias_sigma))
    return correlate(images, kernel[None].to(images.device), "mirror")


def gaussian_blur(images: Tensor, draws: RandomFields, sigma: float) -> Tensor:
    """Gaussian smoothing, the edge repeated outside."""
    return gaussian(images, sigma)


def zoom_blur(images: Tensor, draws: RandomFields, largest: float, step: float) -> Tensor:
    """Mean of the image and of its centre enlarged by 1, 1 + step, ..., largest.

    The factor 1 is in the list, so the image counts twice.
    """
    count = round((largest - 1) / step) + 1
    factors = [round(1 + step * turn, 6) for turn in range(count)]
    total = images.clone()
    for factor in factors:
        total += resize_centre(images, factor)
    return total.div_(count + 1)


def motion_blur(images: Tensor, draws: RandomFields, radius: float, sigma: float) -> Tensor:
    """`directional_blur` at an angle in U(-45, 45) degrees."""
    angle = (draws.uniform("angle", 1)[:, 0] * 2 - 1) * 45
    return directional_blur(images, angle, radius, sigma)


def directional_blur(images: Tensor, angle: Tensor, radius: float, sigma: float) -> Tensor:
    """Weights exp(-i^2 / 2 sigma^2), i = 0 ... 2 radius, along each image's angle (degrees, (B,)).

    Sample i is at the whole pixel nearest to (i cos, i sin), halves rounded down; the edge is
    repeated outside. One half of a Gaussian, so the picture trails off to one side.
    """
    reach = int(2 * radius)
    step = torch.arange(reach + 1, device=images.device, dtype=torch.float64)
    weights = torch.exp(-0.5 * (step / sigma) ** 2)
    weights /= weights.sum()
    radians = angle.double()[:, None] * (math.pi / 180)
    across = torch.ceil(step * radians.cos() - 0.5).long() + reach  # (B, reach + 1)
    down = torch.ceil(step * radians.sin() - 0.5).long() + reach
    side = 2 * reach + 1
    kernels = weights.new_zeros(len(angle), side * side)
    kernels.scatter_add_(1, down * side + across, weights.expand(len(angle), -1))
    return correlate(images, kernels.view(-1, side, side), "nearest")


@lru_cache(maxsize=32)
def _disk(radius: float, sigma: float) -> np.ndarray:
    """x^2 + y^2 <= radius^2 on a 17 x 17 grid (2 radius + 1 past 8), smoothed by 3 x 3 (5 x 5)."""
    reach, rim = (8, 1) if radius <= 8 else (int(radius), 2)
    line = np.arange(-reach, reach + 1)
    disk = (line[:, None] ** 2 + line**2 <= radius**2).astype(float)
    disk /= disk.sum()
    weights = np.exp(-0.5 * (np.arange(-rim, rim + 1) / sigma) ** 2)
    smooth = smoothing(len(line), weights, "mirror")
    return smooth @ disk @ smooth.T


def glass_blur(
    images: Tensor, draws: RandomFields, sigma: float, reach: int, passes: int
) -> Tensor:
    """Blur, truncate to 8 bits, `passes` times `copy_neighbours`, blur again."""
    height, width = images.shape[-2:]
    result = to_8_bit(gaussian(images, sigma))
    for turn in range(passes):
        offsets = draws.integers(f"pass {turn}", 2 * reach, 2, height, width) - reach
        result = copy_neighbours(result, offsets, reach)
    return gaussian(result, sigma)


def copy_neighbours(images: Tensor, offsets: Tensor, reach: int) -> Tensor:
    """Every pixel takes the value of the neighbour at its offset (down, right), one after another.

    Rows and columns run from size - reach down to reach + 1, and a later pixel sees what earlier
    ones have become. (The generator scripts mean to swap, but both sides are views of one array,
    so the neighbour keeps its value: the published sets are copies.)

    Not a loop over pixels: a pixel ends with the *original* value of its neighbour when that one
    comes later or never, and with its *final* value when it came before. These links form a forest
    whose roots are original pixels; following all links at once, each time twice as far, reaches
    them in at most log2(H W) gathers.
    """
    batch, channels, height, width = images.shape
    count = height * width
    places = (torch.arange(size, device=images.device) for size in (height, width))
    rows, columns = torch.meshgrid(*places, indexing="ij")
    own = rows * width + columns

    def is_visited(row: Tensor, column: Tensor) -> Tensor:
        inside = (row > reach) & (row <= height - reach)
        return inside & (column > reach) & (column <= width - reach)

    visited = is_visited(rows, columns)
    row = torch.where(visited, rows + offsets[:, 0], rows)
    column = torch.where(visited, columns + offsets[:, 1], columns)
    neighbour = row * width + column  # (B, H, W)
    was_before = (neighbour > own) & is_visited(row, column)
    # Link below `count`: that pixel's final value; from `count` on: an original value.
    link = torch.where(was_before, neighbour, neighbour + count).view(batch, count)
    roots = own.reshape(1, count).expand(batch, -1) + count
    link = torch.cat([link, roots], dim=1)
    while bool((link[:, :count] < count).any()):
        link = link.gather(1, link)
    source = (link[:, None, :count] - count).expand(-1, channels, -1)
    return images.flatten(2).gather(2, source).view_as(images)
