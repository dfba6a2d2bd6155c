"""Corruptions of the images one has: NumPy or torch, one or a batch, 8-bit or in [0, 1]."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pidformer.errors import InputError
from pidformer.robustness.corruptions.corruption import Corruption


def corrupt(
    images: Any,
    name: str,
    severity: int = 3,
    *,
    seed: int = 0,
    indices: Sequence[int] | None = None,
    **options: Any,
) -> Any:
    """The images, corrupted, as what they came as: kind, shape, layout and type.

    NumPy images are (H, W, 3) or (B, H, W, 3), torch images (3, H, W) or (B, 3, H, W); uint8, or
    floats in [0, 1]. `options` are those of `Corruption` (`constants`, `jpeg_quality`).
    """
    corruption = Corruption(name=name, severity=severity, **options)
    is_array = isinstance(images, np.ndarray)
    if not is_array and not isinstance(images, Tensor):
        raise InputError(
            f"images must be a NumPy array or a torch tensor, got {type(images).__name__}; "
            "np.asarray(image) makes one of a picture"
        )
    given = torch.from_numpy(np.ascontiguousarray(images)) if is_array else images
    if given.ndim not in (3, 4):
        layout = "(H, W, 3) or (B, H, W, 3)" if is_array else "(3, H, W) or (B, 3, H, W)"
        raise InputError(f"images must be {layout}, got {tuple(given.shape)}")
    batch = given if given.ndim == 4 else given[None]
    pixels = batch.permute(0, 3, 1, 2) if is_array else batch
    if pixels.dtype == torch.uint8:
        pixels = pixels.float() / 255
    found = corruption.corrupt(pixels, seed=seed, indices=indices)
    if given.dtype == torch.uint8:
        found = (found * 255).round()
    found = (found.permute(0, 2, 3, 1) if is_array else found).to(given.dtype)
    found = (found if given.ndim == 4 else found[0]).contiguous()
    return found.numpy() if is_array else found
