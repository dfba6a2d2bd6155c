"""Colour, elastic transform, pixelation and JPEG compression."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.io import decode_jpeg, encode_jpeg

from pidformer.robustness.corruptions.filters import RandomFields, gaussian


def brightness(images: Tensor, draws: RandomFields, add: float) -> Tensor:
    """HSV value + `add`, clipped; at equal hue and saturation colours scale with the value."""
    value = images.amax(1, keepdim=True)
    brighter = (value + add).clamp_(max=1)
    return torch.where(value > 0, images * (brighter / value.clamp(min=1e-6)), brighter)


def saturate(images: Tensor, draws: RandomFields, multiply: float, add: float) -> Tensor:
    """HSV saturation * `multiply` + `add`, clipped.

    Channels keep their distances below the largest in proportion. Greys have hue 0, red: what is
    added to their saturation takes green and blue away.
    """
    value = images.amax(1, keepdim=True)
    below = value - images
    saturation = below.amax(1, keepdim=True) / value.clamp(min=1e-6)
    wanted = (saturation * multiply + add).clamp_(0, 1)
    red = images.new_tensor([0.0, 1.0, 1.0]).view(1, 3, 1, 1)
    is_grey = saturation == 0
    unit = torch.where(is_grey, red * value, below / saturation.clamp(min=1e-6))
    return value - unit * wanted


def contrast(images: Tensor, draws: RandomFields, scale: float) -> Tensor:
    """(x - mean) * `scale` + mean, with each channel's mean over the image."""
    mean = images.mean((2, 3), keepdim=True)
    return (images - mean) * scale + mean


def elastic_transform(
    images: Tensor, draws: RandomFields, alpha: float, sigma: float, jitter: float
) -> Tensor:
    """Three points move by U(-jitter, jitter), then each pixel by alpha * Gaussian(U(-1, 1)).

    The points are the centre plus (s, s), (s, -s) and (-s, -s), s a third of the short side; the
    image follows their affine map (linear, mirrored outside). The displacement fields are
    smoothed with `sigma` (cut at 3 sigma, reflected outside), sampled linearly, reflected outside.
    """
    height, width = images.shape[-2:]
    moved = (draws.uniform("corners", 3, 2).double() * 2 - 1) * jitter
    places = (torch.arange(n, device=images.device, dtype=torch.float64) for n in (height, width))
    down, right = torch.meshgrid(*places, indexing="ij")
    back = affine_back(moved, height, width)  # (B, 2, 3)
    pulled = back[:, :, :2] @ torch.stack([right.ravel(), down.ravel()]) + back[:, :, 2:]
    across, along = pulled.view(-1, 2, height, width).unbind(1)
    result = sample(images, across, along, mirror=True)
    if alpha == 0:
        return result
    field = draws.uniform("displacement", 2, height, width).double() * 2 - 1
    field = gaussian(field, sigma, "reflect", truncate=3.0) * alpha
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


def pixelate(images: Tensor, draws: RandomFields, scale: float) -> Tensor:
    """Box resize to `scale` of the size and back."""
    height, width = images.shape[-2:]
    small = [max(int(size * scale), 1) for size in (height, width)]
    return box_resize(box_resize(images, *small), height, width)


def box_resize(images: Tensor, height: int, width: int) -> Tensor:
    """Pillow's BOX filter: columns then rows, each rounded to 8 bits."""
    for axis, size in ((3, width), (2, height)):
        if images.shape[axis] == size:
            continue
        matrix = torch.from_numpy(_box_matrix(images.shape[axis], size)).to(images.device)
        exact = images @ matrix.T if axis == 3 else matrix @ images
        images = exact.mul_(255).add_(0.5 + 1e-6).floor_().div_(255)
    return images


def jpeg_compression(images: Tensor, draws: RandomFields, quality: int) -> Tensor:
    """Through a JPEG file and back (libjpeg, 4:2:0), image by image on the CPU.

    The codec is the definition here, so the GPU's encoder, whose pixels differ, is not used.
    torchvision gives Pillow's pixels in half the time. More threads made it slower on two and on
    sixteen cores.
    """
    levels = images.mul(255).round().byte().cpu()
    decoded = [decode_jpeg(encode_jpeg(pixels, quality=quality)) for pixels in levels]
    return torch.stack(decoded).to(images.device).double().div_(255)


@lru_cache(maxsize=64)
def _box_matrix(before: int, after: int) -> np.ndarray:
    """Row k weighs the pixels whose centres lie in output pixel k, or the one under its centre."""
    scale = before / after
    width = max(scale, 1.0)
    centre = (np.arange(after)[:, None] + 0.5) * scale
    distance = (np.arange(before) + 0.5 - centre) / width
    inside = (distance > -0.5) & (distance <= 0.5)
    return inside / inside.sum(1, keepdims=True)
