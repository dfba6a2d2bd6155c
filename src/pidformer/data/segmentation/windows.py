"""Windows of resized pairs, a whole batch at once, on the device that holds it.

Resizing and cutting are one gather: an output pixel reads the four (image) or one (mask) stored
pixels that it would have been resized from, and nothing outside the window is made. Images and
masks are resized as OpenCV does: bilinear between pixel centres without anti-aliasing, and

    label(y, x) = stored(floor(y h / h'), floor(x w / w'))

Colours are distorted on 8-bit levels, as OpenCV keeps them: floats that hold whole numbers.
"""
# B pairs, H x W stored size, S window

from functools import cache

import numpy as np
import torch
from torch import Tensor

from pidformer.data.formats.masks import IGNORED
from pidformer.data.segmentation.augment import ATTEMPTS, Choices

HUES = 180
_SHIFT = 12  # bits of the fixed point in which 8-bit HSV is defined


def augmented(
    images: Tensor, masks: Tensor, choices: Choices, crop: int, max_category: float
) -> tuple[Tensor, Tensor]:
    """Levels (B, 3, S, S) and labels (B, S, S) of pairs (B, 3, H, W), (B, H, W), all uint8.

    Beyond a resized pair that is smaller than the window labels are 255 and levels undefined.
    """
    device = images.device
    size, corners, is_flipped = (
        torch.from_numpy(chosen).to(device, non_blocking=True)
        for chosen in (choices.size, choices.corners, choices.is_flipped)
    )
    # a GPU tries all at once: it would have to wait for whether the next are needed
    at_once = ATTEMPTS if masks.is_cuda else 1
    corner = chosen_corner(masks, size, corners, crop, max_category, at_once)
    rows, columns = _places(size, corner, is_flipped, crop)
    levels = _bilinear(images, size, rows, columns)
    labels = _labels(masks, size, rows, columns)
    return distort(levels, choices).to(torch.uint8), labels


def is_inside(size: Tensor, crop: int) -> Tensor:
    """Where a window (B, S, S) lies on its pair, which stands at the top left."""
    place = torch.arange(crop, device=size.device)
    rows, columns = (place < side[:, None] for side in size.unbind(1))
    return rows[:, :, None] & columns[:, None, :]


def chosen_corner(
    masks: Tensor, size: Tensor, corners: Tensor, crop: int, max_category: float, at_once: int
) -> Tensor:
    """The first corner whose window is not ruled by one class, else the last, (B, 2).

    `at_once` are looked at together; those that follow only if a pair still needs them.
    """
    if max_category >= 1:
        return corners[:, 0]
    chosen = torch.full((len(masks),), ATTEMPTS, device=masks.device)
    for first in range(0, ATTEMPTS, at_once):
        tried = corners[:, first : min(first + at_once, ATTEMPTS)]
        shown, sizes = (x.repeat_interleave(tried.shape[1], 0) for x in (masks, size))
        straight = torch.zeros(len(shown), dtype=torch.bool, device=masks.device)
        places = _places(sizes, tried.flatten(0, 1), straight, crop)
        is_mixed = _is_mixed(_labels(shown, sizes, *places), max_category).view(tried.shape[:2])
        found = first + is_mixed.int().argmax(1)  # the first of several
        chosen = torch.where((chosen == ATTEMPTS) & is_mixed.any(1), found, chosen)
        if at_once < ATTEMPTS and bool((chosen < ATTEMPTS).all()):
            break
    return corners[torch.arange(len(masks), device=masks.device), chosen]


def _is_mixed(labels: Tensor, max_category: float) -> Tensor:
    """Whether two or more classes are in a window and none has `max_category` of it, (B,)."""
    flat = labels.flatten(1).long()
    counts = torch.zeros(len(labels), 256, dtype=torch.int32, device=labels.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat, dtype=torch.int32))
    counts = counts[:, :IGNORED]
    largest, total = counts.amax(1), counts.sum(1)
    return ((counts > 0).sum(1) > 1) & (largest < max_category * total)


def _places(size: Tensor, corner: Tensor, is_flipped: Tensor, crop: int) -> tuple[Tensor, Tensor]:
    """Rows and columns (B, S) of the resized pair that a window shows; -1 beyond the pair."""
    place = torch.arange(crop, device=size.device)
    height, width = size.clamp(max=crop).unbind(1)
    mirrored = torch.where(is_flipped[:, None], width[:, None] - 1 - place, place)
    rows = torch.where(place < height[:, None], place + corner[:, :1], -1)
    columns = torch.where(place < width[:, None], mirrored + corner[:, 1:], -1)
    return rows, columns


def _labels(masks: Tensor, size: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Nearest labels (B, S, S); 255 beyond the pair."""
    height, width = size.unbind(1)
    y = rows.clamp(min=0) * masks.shape[1] // height[:, None]
    x = columns.clamp(min=0) * masks.shape[2] // width[:, None]
    batch = torch.arange(len(masks), device=masks.device)
    found = masks[batch[:, None, None], y[:, :, None], x[:, None, :]]
    beyond = (rows < 0)[:, :, None] | (columns < 0)[:, None, :]
    return torch.where(beyond, IGNORED, found).to(torch.uint8)


def _bilinear(images: Tensor, size: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Levels (B, 3, S, S), whole numbers in float32."""
    height, width = size.unbind(1)
    mixed = _mixed(images, 2, rows, images.shape[2] / height.double())
    mixed = _mixed(mixed, 3, columns, images.shape[3] / width.double())
    return mixed.add_(0.5).floor_()


def _mixed(images: Tensor, dim: int, target: Tensor, scale: Tensor) -> Tensor:
    """Rows (dim 2) or columns (dim 3) of the images at (target + 1/2) scale - 1/2."""
    last = images.shape[dim] - 1
    place = ((target.clamp(min=0) + 0.5) * scale[:, None] - 0.5).clamp(0, last)  # (B, S)
    before = place.long()
    share = (place - before).float()
    shape = [len(images), 1, 1, 1]
    shape[dim] = target.shape[1]
    low, high, share = (
        values.view(shape) for values in (before, (before + 1).clamp(max=last), share)
    )
    first = torch.take_along_dim(images, low, dim).float()
    second = torch.take_along_dim(images, high, dim).float()
    return torch.lerp(first, second, share)


def distort(images: Tensor, choices: Choices) -> Tensor:
    """Brightness, early contrast, saturation, hue, late contrast; levels in, levels out."""

    def there(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(images.device, non_blocking=True)

    def column(values: np.ndarray) -> Tensor:
        return there(values)[:, None, None, None]

    if choices.brightness.any():
        images = _levels(images + column(choices.brightness))
    if (choices.early_contrast != 1).any():
        images = _levels(images * column(choices.early_contrast))
    if len(rows := np.flatnonzero(~np.isnan(choices.saturation))):
        hue, saturation, value = to_hsv(images[there(rows)])
        saturation = _levels(saturation * column(choices.saturation[rows])[:, 0])
        images = images.index_copy(0, there(rows), to_rgb(hue, saturation, value))
    if len(rows := np.flatnonzero(choices.hue)):
        hue, saturation, value = to_hsv(images[there(rows)])
        hue = (hue + column(choices.hue[rows])[:, 0]) % HUES
        images = images.index_copy(0, there(rows), to_rgb(hue, saturation, value))
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


def _levels(values: Tensor) -> Tensor:
    return values.clamp(0, 255).floor()


@cache
def _table(numerator: float, device: torch.device) -> Tensor:
    """numerator / n in fixed point for n = 0 ... 255, int32; 0 at n = 0."""
    n = np.arange(1, 256)
    table = np.concatenate([[0], np.rint((numerator * (1 << _SHIFT)) / n)]).astype(np.int32)
    return torch.from_numpy(table).to(device)
