"""Augmentation of a whole batch at once, on the device that holds it.

Images are uint8 until they are erased or mixed, as PIL's are, so that images kept on the device
and streamed ones have the same levels. Random numbers come in as small arrays drawn on the host
(`boxes` and friends), so no step waits for the device.
"""

# B batch, C channels, H x W stored size, S image size

import math

import numpy as np
import torch
from torch import Tensor

from pidformer.data.noise import normal_noise

ERASED = ((0.02, 1 / 3), (0.3, 1 / 0.3))  # area as a share of the image, aspect ratio
ATTEMPTS = 10  # draws of a box before giving up, as timm and torchvision have it


def crop_boxes(
    rng: np.random.Generator,
    count: int,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> np.ndarray:
    """Random-resized-crop boxes (top, left, height, width), int64 (count, 4).

    Area uniform in `scale`, width over height log-uniform in `ratio`; the first draw that fits
    counts, and if none does, the largest central box with an allowed ratio.
    """
    boxes, fits = _boxes(rng, count, height, width, 0, scale, ratio)
    central_w = min(width, round(height * ratio[1]))
    central_h = min(height, round(width / ratio[0]))
    central = ((height - central_h) // 2, (width - central_w) // 2, central_h, central_w)
    return np.where(fits[:, None], boxes, np.array(central))


def erase_boxes(
    rng: np.random.Generator, count: int, height: int, width: int, probability: float
) -> tuple[np.ndarray, np.ndarray]:
    """Which images have a box erased, int64 (n,), and their boxes (n, 4) as in `crop_boxes`."""
    rows = np.flatnonzero(rng.random(count) < probability)
    boxes, fits = _boxes(rng, len(rows), height, width, 1, *ERASED)
    return rows[fits], boxes[fits]


def resized_crop(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Cut a box (B, 4) out of each uint8 image (B, C, H, W) and resize it to (B, C, S, S).

    Bicubic with anti-aliasing, as PIL and DeiT do it: each output row and column is a weighted sum
    of the box's, so a batch is two batched matrix products with a weight matrix per image, rounded
    to whole levels after each as PIL does. `F.grid_sample` would be no faster and could not
    anti-alias, which shows when a box is larger than S.
    """
    top, left, height, width = boxes.float().unbind(1)
    rows = _resize_weights(top, height, images.shape[-2], size)  # (B, S, H)
    columns = _resize_weights(left, width, images.shape[-1], size)  # (B, S, W)
    narrowed = _whole_levels(images.float() @ columns[:, None].mT)  # (B, C, H, S)
    return _whole_levels(rows[:, None] @ narrowed).to(torch.uint8)


def padded_crop(images: Tensor, corners: Tensor, padding: int) -> Tensor:
    """The H x W window at each corner (B, 2) of the image with a black border of `padding`."""
    for dim, start in zip((2, 3), corners.unbind(1), strict=True):
        size = images.shape[dim]
        source = start[:, None] - padding + torch.arange(size, device=images.device)  # (B, size)
        shape = [len(images), 1, 1, 1]
        shape[dim] = size
        inside = ((source >= 0) & (source < size)).view(shape)
        index = source.clamp(0, size - 1).view(shape).expand_as(images)
        images = images.gather(dim, index) * inside
    return images


def flip_left_right(images: Tensor, is_flipped: Tensor) -> Tensor:
    return torch.where(is_flipped[:, None, None, None], images.flip(-1), images)


def erase(
    images: Tensor, rows: Tensor, boxes: Tensor, keys: Tensor, mean: Tensor, std: Tensor
) -> Tensor:
    """Fill one box in each of images[rows], floats in [0, 1], with mean + std N(0, 1); in place.

    DeiT writes N(0, 1) after normalisation; with the normalisation inside the model this is the
    same picture in pixel space, so it may leave [0, 1]. `boxes` (n, 4) and `keys` (n, 2) belong to
    `rows` (n,), `mean` and `std` are (C,).
    """
    channels, height, width = images.shape[1:]
    noise = normal_noise(keys, channels * height * width).view(-1, channels, height, width)
    fill = noise * std[:, None, None] + mean[:, None, None]
    top, left, h, w = (side[:, None] for side in boxes.unbind(1))
    y = torch.arange(height, device=images.device)
    x = torch.arange(width, device=images.device)
    is_row, is_column = (y >= top) & (y < top + h), (x >= left) & (x < left + w)
    inside = (is_row[:, None, :, None]) & (is_column[:, None, None, :])  # (n, 1, H, W)
    return images.index_copy_(0, rows, torch.where(inside, fill, images[rows]))


def _boxes(
    rng: np.random.Generator,
    count: int,
    height: int,
    width: int,
    margin: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[np.ndarray, np.ndarray]:
    """For each image the first of `ATTEMPTS` boxes that fits, (count, 4), and whether one did."""
    area = height * width
    share = rng.uniform(scale[0] * area, scale[1] * area, (count, ATTEMPTS))
    aspect = np.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1]), share.shape))
    w = np.rint(np.sqrt(share * aspect))
    h = np.rint(np.sqrt(share / aspect))
    fits = (h <= height - margin) & (w <= width - margin)
    first = np.arange(count), fits.argmax(axis=1)
    h, w = np.maximum(h[first], 1), np.maximum(w[first], 1)
    down, right = rng.random((2, count))  # uniform among the corners there are
    boxes = (down * (height - h + 1)).astype(int), (right * (width - w + 1)).astype(int), h, w
    return np.stack(boxes, axis=1).astype(np.int64), fits[first]


def _whole_levels(values: Tensor) -> Tensor:
    return values.add_(0.5).floor_().clamp_(0, 255)  # halves go up, as in PIL


def _resize_weights(start: Tensor, length: Tensor, source: int, size: int) -> Tensor:
    """Weights (B, size, source) that resize [start, start + length) to `size` samples.

    PIL's rule: the kernel widens with the scale when shrinking, sees nothing outside the box, and
    sums to one.
    """
    scale = (length / size)[:, None]  # (B, 1)
    target = torch.arange(size, device=start.device) + 0.5
    pixel = torch.arange(source, device=start.device) + 0.5
    centre = start[:, None] + target * scale  # (B, size)
    distance = (pixel - centre[..., None]).abs_() / scale.clamp(min=1)[..., None]
    end = start + length
    is_inside = (pixel > start[:, None]) & (pixel < end[:, None])  # (B, source)
    weights = _cubic(distance) * is_inside[:, None]
    return weights / weights.sum(-1, keepdim=True)


def _cubic(t: Tensor) -> Tensor:
    """Keys' cubic kernel with a = -1/2 at distances t >= 0."""
    near = (1.5 * t - 2.5) * t * t + 1
    far = ((-0.5 * t + 2.5) * t - 4) * t + 2
    return torch.where(t < 1, near, torch.where(t < 2, far, 0))
