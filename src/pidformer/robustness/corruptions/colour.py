"""Brightness, saturation and contrast."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pidformer.robustness.corruptions.fields import RandomFields


def brightness(images: Tensor, constants: Mapping[str, float], draws: RandomFields) -> Tensor:
    """HSV value + `add`, clipped; at equal hue and saturation colours scale with the value."""
    value = images.amax(1, keepdim=True)
    brighter = (value + constants["add"]).clamp_(max=1)
    return torch.where(value > 0, images * (brighter / value.clamp(min=1e-6)), brighter)


def saturate(images: Tensor, constants: Mapping[str, float], draws: RandomFields) -> Tensor:
    """HSV saturation * `multiply` + `add`, clipped.

    Channels keep their distances below the largest in proportion. Greys have hue 0, red: what is
    added to their saturation takes green and blue away.
    """
    value = images.amax(1, keepdim=True)
    below = value - images
    saturation = below.amax(1, keepdim=True) / value.clamp(min=1e-6)
    wanted = (saturation * constants["multiply"] + constants["add"]).clamp_(0, 1)
    red = images.new_tensor([0.0, 1.0, 1.0]).view(1, 3, 1, 1)
    is_grey = saturation == 0
    unit = torch.where(is_grey, red * value, below / saturation.clamp(min=1e-6))
    return value - unit * wanted


def contrast(images: Tensor, constants: Mapping[str, float], draws: RandomFields) -> Tensor:
    """(x - mean) * `scale` + mean, with each channel's mean over the image."""
    mean = images.mean((2, 3), keepdim=True)
    return (images - mean) * constants["scale"] + mean
