"""Pixelation and JPEG compression."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torchvision.io import decode_jpeg, encode_jpeg

from pidformer.robustness.corruptions.fields import RandomFields


def pixelate(images: Tensor, constants: Mapping[str, float], draws: RandomFields) -> Tensor:
    """Box resize to `scale` of the size and back."""
    height, width = images.shape[-2:]
    small = [max(int(size * constants["scale"]), 1) for size in (height, width)]
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


def jpeg_compression(images: Tensor, constants: Mapping[str, float], draws: RandomFields) -> Tensor:
    """`jpeg` at `quality`."""
    return jpeg(images, int(constants["quality"]))


def jpeg(images: Tensor, quality: int) -> Tensor:
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
