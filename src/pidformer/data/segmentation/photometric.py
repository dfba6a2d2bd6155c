"""Colours of a batch on 8-bit levels, as OpenCV keeps them: floats that hold whole numbers."""
# B images of shape (3, H, W), levels 0 ... 255

from functools import cache

import numpy as np
import torch
from torch import Tensor

from pidformer.data.segmentation.augment import Choices

HUES = 180
_SHIFT = 12  # bits of the fixed point in which 8-bit HSV is defined


def distort(images: Tensor, choices: Choices) -> Tensor:
    """Brightness, early contrast, saturation, hue, late contrast; levels in, levels out."""
    device = images.device

    def column(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(device, non_blocking=True)[:, None, None, None]

    if choices.brightness.any():
        images = _levels(images + column(choices.brightness))
    if (choices.early_contrast != 1).any():
        images = _levels(images * column(choices.early_contrast))
    if len(rows := np.flatnonzero(~np.isnan(choices.saturation))):
        hue, saturation, value = _hsv(images, rows)
        saturation = _levels(saturation * column(choices.saturation[rows])[:, 0])
        images = _replaced(images, rows, to_rgb(hue, saturation, value))
    if len(rows := np.flatnonzero(choices.hue)):
        hue, saturation, value = _hsv(images, rows)
        hue = (hue + column(choices.hue[rows])[:, 0]) % HUES
        images = _replaced(images, rows, to_rgb(hue, saturation, value))
    if (choices.late_contrast != 1).any():
        images = _levels(images * column(choices.late_contrast))
    return images


def to_hsv(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Levels (B, 3, H, W) to hue in 0 ... 179, saturation and value in 0 ... 255, (B, H, W).

    value = max, saturation = 255 (max - min) / max, hue = 30 times the place on the hexagon, both
    rounded in fixed point with 12 bits.
    """
    r, g, b = images.to(torch.int32).unbind(1)
    value = torch.maximum(torch.maximum(r, g), b)
    spread = value - torch.minimum(torch.minimum(r, g), b)
    half = 1 << (_SHIFT - 1)
    saturation = (spread * _table(255.0, images.device)[value] + half) >> _SHIFT
    turn = torch.where(
        value == r, g - b, torch.where(value == g, b - r + 2 * spread, r - g + 4 * spread)
    )
    hue = (turn * _table(HUES / 6, images.device)[spread] + half) >> _SHIFT
    hue = torch.where(hue < 0, hue + HUES, hue)
    return hue.float(), saturation.float(), value.float()


def to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """The inverse, rounded to levels (B, 3, H, W)."""
    share = saturation / 255
    place = hue * (6 / HUES)
    # Channel n of (r, g, b) = (5, 3, 1): value (1 - share max(0, min(k, 4 - k, 1))),
    # k = (n + place) mod 6: the hexagon, without its six cases.
    channels = []
    for n in (5, 3, 1):
        k = (n + place) % 6
        slope = torch.minimum(k, 4 - k).clamp(0, 1)
        channels.append((value * (1 - share * slope)).round())
    return torch.stack(channels, dim=1)


def _hsv(images: Tensor, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    return to_hsv(images[torch.from_numpy(rows).to(images.device, non_blocking=True)])


def _replaced(images: Tensor, rows: np.ndarray, found: Tensor) -> Tensor:
    return images.index_copy(0, torch.from_numpy(rows).to(images.device, non_blocking=True), found)


def _levels(values: Tensor) -> Tensor:
    return values.clamp(0, 255).floor()


@cache
def _table(numerator: float, device: torch.device) -> Tensor:
    """numerator / n in fixed point for n = 0 ... 255, int32; 0 at n = 0."""
    n = np.arange(1, 256)
    table = np.concatenate([[0], np.rint((numerator * (1 << _SHIFT)) / n)]).astype(np.int32)
    return torch.from_numpy(table).to(device)
