"""Weather: snow, fog, frost, and spatters of rain or mud.

The published set lays crops of five photographs of frost over the images. They are not ours to
ship, so the textures are made here, by the same fixed seed for everyone, each with the colour and
the contrast of one of the photographs. Errors under frost compare with each other, not with
published numbers.
"""

import math
from functools import cache, lru_cache

import numpy as np
import scipy
import torch
from torch import Tensor
from torch.nn import functional as F

from pidformer.robustness.corruptions.blur import directional_blur
from pidformer.robustness.corruptions.filters import (
    RandomFields,
    gaussian,
    resize_centre,
    round_8_bit,
    to_8_bit,
)

_LUMA = (0.299, 0.587, 0.114)
_FIRST_WOBBLE = 100.0
TEXTURES = 5
_SIDE = 384
_COLOUR = ((78, 149, 166), (201, 205, 214), (201, 205, 214), (138, 153, 165), (112, 123, 135))
"""The photographs' mean red, green and blue; the second and the third are alike."""
_CONTRAST = (20, 22, 22, 29, 43)
"""Their standard deviation within a channel, in grey levels."""


def snow(
    images: Tensor, draws: RandomFields, mean: float, std: float, zoom: float, threshold: float,
    radius: float, sigma: float, keep: float,
) -> Tensor:  # fmt: skip
    """keep * x + (1 - keep) * max(x, 1.5 grey + 0.5), plus the flakes and the flakes turned round.

    Flakes are N(mean, std) enlarged by `zoom`, 0 below `threshold`, truncated to 8 bits and
    blurred at an angle in U(-135, -45) degrees (rounded to 8 bits, as an image is stored).
    """
    height, width = images.shape[-2:]
    layer = draws.normal("flakes", 1, height, width) * std + mean
    layer = resize_centre(layer, zoom)
    layer = to_8_bit(torch.where(layer < threshold, 0.0, layer))
    angle = draws.uniform("angle", 1)[:, 0] * 90 - 135
    layer = directional_blur(layer, angle, radius, sigma)
    layer = round_8_bit(layer)
    luma = images.new_tensor(_LUMA).view(1, 3, 1, 1)
    grey = (images * luma).sum(1, keepdim=True)
    pale = keep * images + (1 - keep) * torch.maximum(images, 1.5 * grey + 0.5)
    return pale + layer + layer.flip(2, 3)


def fog(images: Tensor, draws: RandomFields, amount: float, decay: float) -> Tensor:
    """(x + amount * plasma) * max / (max + amount), with the image's largest entry as max.

    The plasma's side is the power of two that covers the image.
    """
    height, width = images.shape[-2:]
    side = 1 << (max(height, width) - 1).bit_length()
    plasma = diamond_square(draws, side, decay)[:, None, :height, :width]
    largest = images.amax((1, 2, 3), keepdim=True)
    return (images + amount * plasma) * (largest / (largest + amount))


def diamond_square(draws: RandomFields, side: int, decay: float) -> Tensor:
    """Plasma fractals (B, side, side) on a torus, scaled to [0, 1].

    From the coarsest grid down, the centre of each square and then the middle of each edge become
    the mean of their four neighbours plus w^2 U(-1, 1); w starts at 100 and is divided by `decay`
    after each grid. (The published fractal multiplies by w twice.)
    """
    plasma: Tensor | None = None
    step, wobble = side, _FIRST_WOBBLE
    while step >= 2:
        half, count = step // 2, side // step
        noise = draws.uniform(f"grid {step}", 3, count, count).double() * 2 - 1
        noise *= wobble**2
        if plasma is None:
            plasma = noise.new_zeros(len(noise), side, side)
        corners = plasma[:, ::step, ::step]
        right = corners + corners.roll(-1, 2)  # the ends of each horizontal edge
        down = corners + corners.roll(-1, 1)
        centres = (right + right.roll(-1, 1)) / 4 + noise[:, 0]
        plasma[:, half::step, half::step] = centres
        plasma[:, ::step, half::step] = (centres + centres.roll(1, 1) + right) / 4 + noise[:, 1]
        plasma[:, half::step, ::step] = (centres + centres.roll(1, 2) + down) / 4 + noise[:, 2]
        step, wobble = half, wobble / decay
    assert plasma is not None, "a side is at least 2"
    plasma -= plasma.amin((1, 2), keepdim=True)
    return plasma / plasma.amax((1, 2), keepdim=True)


def frost(
    images: Tensor, draws: RandomFields, image_weight: float, frost_weight: float,
    texture_scale: float,
) -> Tensor:  # fmt: skip
    """image_weight * x + frost_weight * a random crop of one of five textures."""
    height, width = images.shape[-2:]
    ice = _scaled_ice(texture_scale, str(images.device))
    side = ice.shape[1]
    which = draws.integers("texture", TEXTURES, 1, 1)
    corner = draws.integers("corner", side, 2, 1)  # textures are periodic, so any corner will do
    rows = (corner[:, 0] + torch.arange(height, device=images.device)) % side
    columns = (corner[:, 1] + torch.arange(width, device=images.device)) % side
    layer = _coloured(ice[which, rows[:, :, None], columns[:, None, :]], which.flatten())
    return image_weight * images + frost_weight * layer


def frost_textures(scale: float) -> Tensor:
    """The textures (5, side, side, 3) in [0, 1], side = 384 * scale, periodic."""
    coloured = _coloured(_scaled_ice(scale, "cpu"), torch.arange(TEXTURES))
    return coloured.permute(0, 2, 3, 1)


def _coloured(ice: Tensor, which: Tensor) -> Tensor:
    """Ice of mean 0 and variance 1, (B, H, W), in the colours of the textures: (B, 3, H, W)."""
    colour, contrast = ice.new_tensor(_COLOUR)[which], ice.new_tensor(_CONTRAST)[which]
    layer = colour[:, :, None, None] + contrast[:, None, None, None] * ice[:, None]
    return (layer / 255).clamp(0, 1)


@lru_cache(maxsize=8)
def _scaled_ice(scale: float, device: str) -> Tensor:
    ice = _all_ice()
    if scale < 1:
        side = round(_SIDE * scale)
        ice = F.interpolate(ice[:, None], (side, side), mode="area")[:, 0]
    return ice.to(device)


@cache
def _all_ice() -> Tensor:
    ice = np.stack([_ice(np.random.default_rng(k)) for k in range(TEXTURES)])
    ice -= ice.mean((1, 2), keepdims=True)
    return torch.from_numpy(ice / ice.std((1, 2), keepdims=True))


def _ice(rng: np.random.Generator) -> np.ndarray:
    """How much ice covers each pixel: feathers of two sizes, thicker where a cloud is dense."""
    warp = 9 * np.stack([_cloud(rng, 1.6), _cloud(rng, 1.6)])
    ragged = 0.22 * _cloud(rng, 0.9)
    large = _feathers(rng, count=24, spacing=8.0, warp=warp, ragged=ragged)
    small = _feathers(rng, count=220, spacing=4.0, warp=warp / 3, ragged=ragged)
    sparkle = (0.75 + 0.3 * _cloud(rng, 0.5)).clip(0.2, 1.4)
    cover = 1 / (1 + np.exp(0.2 - 2.2 * _cloud(rng, 1.5)))
    crystals = np.maximum(large, 0.7 * small) * sparkle
    return (0.1 + 0.2 * cover + (0.2 + 0.9 * cover) * crystals).clip(0, 1)


def _feathers(
    rng: np.random.Generator, count: int, spacing: float, warp: np.ndarray, ragged: np.ndarray
) -> np.ndarray:
    """A crystal around each of `count` points: a spine, and barbs at 60 degrees on its sides."""
    points, angle = rng.uniform(0, _SIDE, (count, 2)), rng.uniform(0, 2 * np.pi, count)
    pitch, shift = spacing * rng.uniform(0.6, 1.5, count), rng.uniform(0, 0.5, count)
    place = np.moveaxis(np.indices((_SIDE, _SIDE)) + warp, 0, -1)
    distance, nearest = scipy.spatial.cKDTree(points, boxsize=_SIDE).query(place % _SIDE, k=2)
    owner = nearest[..., 0]
    offset = (place - points[owner] + _SIDE / 2) % _SIDE - _SIDE / 2
    cos, sin = np.cos(angle)[owner], np.sin(angle)[owner]
    along = offset[..., 0] * cos + offset[..., 1] * sin
    aside = offset[..., 1] * cos - offset[..., 0] * sin
    pitch = pitch[owner]
    turn = (along - np.abs(aside) / np.sqrt(3)) / pitch + ragged
    turn += np.where(aside > 0, shift[owner], 0)  # the two sides do not mirror each other
    barbs = (0.5 + 0.5 * np.cos(2 * np.pi * turn)) ** 2.5
    fade = np.exp(-np.abs(aside) / (4 * pitch))
    spine = np.exp(-((aside / (0.22 * pitch)) ** 2))
    meeting = distance[..., 1] - distance[..., 0]  # 0 on the border of two crystals
    seam = np.exp(-((meeting / (0.2 * pitch)) ** 2))
    return np.maximum(np.maximum(spine, barbs * fade), 0.6 * seam)


def _cloud(rng: np.random.Generator, roughness: float) -> np.ndarray:
    """Periodic noise of mean 0 and variance 1 whose amplitude falls as 1 / frequency^roughness."""
    across, down = np.fft.rfftfreq(_SIDE)[None], np.fft.fftfreq(_SIDE)[:, None]
    frequency = np.hypot(across, down)
    frequency[0, 0] = np.inf
    cloud = np.fft.irfft2(np.fft.rfft2(rng.normal(size=(_SIDE, _SIDE))) / frequency**roughness)
    return (cloud - cloud.mean()) / cloud.std()


_WATER = (175 / 255, 238 / 255, 238 / 255)  # pale turquoise
_MUD = (63 / 255, 42 / 255, 20 / 255)
_EMBOSS = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))
_BOX = ((1 / 9,) * 3,) * 3
_FARTHEST = 20
_TAN_22, _TAN_67 = math.tan(math.pi / 8), math.tan(3 * math.pi / 8)


def spatter(
    images: Tensor, draws: RandomFields, mean: float, std: float, sigma: float, threshold: float,
    strength: float, is_mud: bool,
) -> Tensor:  # fmt: skip
    """A liquid layer, N(mean, std) smoothed with `sigma` and 0 below `threshold`, seen as drops.

    Mud: brown with weight Gaussian(layer > threshold; strength), 0 below 0.8.
    Water: turquoise added with weight strength * relief / max(relief); see `relief`.
    """
    height, width = images.shape[-2:]
    layer = draws.normal("liquid", height, width) * std + mean
    layer = gaussian(layer, sigma)
    if is_mud:
        weight = gaussian((layer > threshold).double(), strength)
        weight = torch.where(weight < 0.8, 0.0, weight)[:, None]
        return images * (1 - weight) + _colour(_MUD, images) * weight
    layer = torch.where(layer < threshold, 0.0, layer)
    lit = relief((layer * 255).floor().clamp_(0, 255))
    weight = lit / lit.amax((1, 2), keepdim=True).clamp(min=1)
    return images + _colour(_WATER, images) * (strength * weight)[:, None]


def relief(layer: Tensor) -> Tensor:
    """Light on the drops of an 8-bit layer (B, H, W).

    The distance to the drops' edges (Canny 50, 150; at most 20 pixels), averaged over 3 x 3, its
    histogram equalised, embossed, averaged again, times the layer; 8 bits after each step.
    """
    distance = distance_to(canny(layer, 50, 150), _FARTHEST)
    distance = filter_3x3(distance, _BOX).add(1e-6).floor()
    lit = filter_3x3(equalise(distance), _EMBOSS).clamp(0, 255)
    return layer * filter_3x3(lit, _BOX).round()


def equalise(images: Tensor) -> Tensor:
    """Histogram equalisation of 8-bit images: 255 * (the share below or at a level), the lowest
    level taken as none of it; an image of one level stays as it is."""
    levels = images.long().flatten(1)
    counts = torch.zeros(len(levels), 256, dtype=torch.float64, device=images.device)
    counts.scatter_add_(1, levels, counts.new_ones(()).expand(levels.shape))
    lowest = counts.gather(1, levels.amin(1, keepdim=True))
    total = levels.shape[1]
    scale = 255 / (total - lowest).clamp(min=1)
    table = ((counts.cumsum(1) - lowest) * scale).round().clamp(0, 255)
    return torch.where((lowest == total)[:, None], images, table.gather(1, levels).view_as(images))


def filter_3x3(images: Tensor, kernel: tuple[tuple[float, ...], ...]) -> Tensor:
    """Correlation of (B, H, W) with a 3 x 3 kernel, mirrored at the edge pixels."""
    padded = F.pad(images[:, None], (1, 1, 1, 1), mode="reflect")
    return F.conv2d(padded, images.new_tensor(kernel)[None, None])[:, 0]


def _colour(rgb: tuple[float, float, float], like: Tensor) -> Tensor:
    return torch.tensor(rgb, dtype=torch.float64, device=like.device).view(1, 3, 1, 1)


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
