"""Edges of 8-bit layers (B, H, W), and the distance to them."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_TAN_22, _TAN_67 = math.tan(math.pi / 8), math.tan(3 * math.pi / 8)


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
