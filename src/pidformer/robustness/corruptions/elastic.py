"""Elastic transform: a random affine map, then smooth random displacements."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from pidformer.robustness.corruptions.fields import RandomFields
from pidformer.robustness.corruptions.filters import gaussian


def elastic_transform(
    images: Tensor, constants: Mapping[str, float], draws: RandomFields
) -> Tensor:
    """Three points move by U(-jitter, jitter), then each pixel by alpha * Gaussian(U(-1, 1)).

    The points are the centre plus (s, s), (s, -s) and (-s, -s), s a third of the short side; the
    image follows their affine map (linear, mirrored outside). The displacement fields are
    smoothed with `sigma` (cut at 3 sigma, reflected outside), sampled linearly, reflected outside.
    """
    height, width = images.shape[-2:]
    moved = (draws.uniform("corners", 3, 2).double() * 2 - 1) * constants["jitter"]
    right, down = _pixel_grid(images)
    back = affine_back(moved, height, width)  # (B, 2, 3)
    pulled = back[:, :, :2] @ torch.stack([right.ravel(), down.ravel()]) + back[:, :, 2:]
    across, along = pulled.view(-1, 2, height, width).unbind(1)
    result = sample(images, across, along, mirror=True)
    if constants["alpha"] == 0:
        return result
    field = draws.uniform("displacement", 2, height, width).double() * 2 - 1
    field = gaussian(field, constants["sigma"], "reflect", truncate=3.0) * constants["alpha"]
    return sample(result, right + field[:, 0], down + field[:, 1], mirror=False)


def affine_back(moved: Tensor, height: int, width: int) -> Tensor:
    """The map (B, 2, 3) from where the three points arrive to where they came from."""
    reach = min(height, width) // 3
    corners = moved.new_tensor([[1, 1], [1, -1], [-1, -1]]) * reach
    points = corners + moved.new_tensor([width // 2, height // 2])  # (x, y)
    ones = moved.new_ones(len(moved), 3, 1)
    arrived = torch.cat([points + moved, ones], dim=2)
    return torch.linalg.solve(arrived, points.expand(len(moved), -1, -1)).mT


def sample(images: Tensor, across: Tensor, down: Tensor, *, mirror: bool) -> Tensor:
    """Linear interpolation at pixel coordinates (B, H, W).

    Outside, the image is mirrored at the centres of its edge pixels (`mirror`) or at their rims.
    """
    height, width = images.shape[-2:]
    if mirror:
        places = (2 * across / (width - 1) - 1, 2 * down / (height - 1) - 1)
    else:
        places = ((2 * across + 1) / width - 1, (2 * down + 1) / height - 1)
    grid = torch.stack(torch.broadcast_tensors(*places), dim=-1)
    return F.grid_sample(images, grid, "bilinear", "reflection", align_corners=mirror)


def _pixel_grid(images: Tensor) -> tuple[Tensor, Tensor]:
    height, width = images.shape[-2:]
    down = torch.arange(height, device=images.device, dtype=torch.float64)
    right = torch.arange(width, device=images.device, dtype=torch.float64)
    return right.expand(height, width), down[:, None].expand(height, width)
