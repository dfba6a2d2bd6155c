"""Glass blur: neighbours shuffled locally, between two Gaussian blurs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pidformer.robustness.corruptions.fields import RandomFields
from pidformer.robustness.corruptions.filters import gaussian
from pidformer.robustness.corruptions.quantise import to_8_bit


def glass_blur(images: Tensor, constants: Mapping[str, float], draws: RandomFields) -> Tensor:
    """Blur, truncate to 8 bits, `passes` times `copy_neighbours`, blur again."""
    reach = int(constants["reach"])
    height, width = images.shape[-2:]
    result = to_8_bit(gaussian(images, constants["sigma"]))
    for turn in range(int(constants["passes"])):
        offsets = draws.integers(f"pass {turn}", 2 * reach, 2, height, width) - reach
        result = copy_neighbours(result, offsets, reach)
    return gaussian(result, constants["sigma"])


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
    rows = torch.arange(height, device=images.device)[:, None].expand(height, width)
    columns = torch.arange(width, device=images.device).expand(height, width)
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
