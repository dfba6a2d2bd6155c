"""Weather: snow, fog and frost.

The published set lays crops of five photographs of frost over the images. They are not ours to
ship, so the textures are made here, by the same fixed seed for everyone, each with the colour and
the contrast of one of the photographs. Errors under frost compare with each other, not with
published numbers.
"""

from collections.abc import Mapping
from functools import cache, lru_cache

import numpy as np
import scipy
import torch
from torch import Tensor
from torch.nn import functional as F

from pidformer.robustness.corruptions.blur import directional_blur
from pidformer.robustness.corruptions.fields import RandomFields
from pidformer.robustness.corruptions.filters import resize_centre, round_8_bit, to_8_bit

_LUMA = (0.299, 0.587, 0.114)
_FIRST_WOBBLE = 100.0
TEXTURES = 5
_SIDE = 384
_COLOUR = ((78, 149, 166), (201, 205, 214), (201, 205, 214), (138, 153, 165), (112, 123, 135))
"""The photographs' mean red, green and blue; the second and the third are alike."""
_CONTRAST = (20, 22, 22, 29, 43)
"""Their standard deviation within a channel, in grey levels."""


def snow(images: Tensor, constants: Mapping[str, float], draws: RandomFields) -> Tensor:
    """keep * x + (1 - keep) * max(x, 1.5 grey + 0.5), plus the flakes and the flakes turned round.

    Flakes are N(mean, std) enlarged by `zoom`, 0 below `threshold`, truncated to 8 bits and
    blurred at an angle in U(-135, -45) degrees (rounded to 8 bits, as an image is stored).
    """
    height, width = images.shape[-2:]
    layer = draws.normal("flakes", 1, height, width) * constants["std"] + constants["mean"]
    layer = resize_centre(layer, constants["zoom"])
    layer = to_8_bit(torch.where(layer < constants["threshold"], 0.0, layer))
    angle = draws.uniform("angle", 1)[:, 0] * 90 - 135
    layer = directional_blur(layer, angle, constants["radius"], constants["sigma"])
    layer = round_8_bit(layer)
    luma = images.new_tensor(_LUMA).view(1, 3, 1, 1)
    grey = (images * luma).sum(1, keepdim=True)
    keep = constants["keep"]
    pale = keep * images + (1 - keep) * torch.maximum(images, 1.5 * grey + 0.5)
    return pale + layer + layer.flip(2, 3)


def fog(images: Tensor, constants: Mapping[str, float], draws: RandomFields) -> Tensor:
    """(x + amount * plasma) * max / (max + amount), with the image's largest entry as max.

    The plasma's side is the power of two that covers the image.
    """
    height, width = images.shape[-2:]
    side = 1 << (max(height, width) - 1).bit_length()
    plasma = diamond_square(draws, side, constants["decay"])[:, None, :height, :width]
    largest = images.amax((1, 2, 3), keepdim=True)
    amount = constants["amount"]
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


def frost(images: Tensor, constants: Mapping[str, float], draws: RandomFields) -> Tensor:
    """image_weight * x + frost_weight * a random crop of one of five textures."""
    height, width = images.shape[-2:]
    ice = _scaled_ice(constants["texture_scale"], str(images.device))
    side = ice.shape[1]
    which = draws.integers("texture", TEXTURES, 1, 1)
    corner = draws.integers("corner", side, 2, 1)  # textures are periodic, so any corner will do
    rows = (corner[:, 0] + torch.arange(height, device=images.device)) % side
    columns = (corner[:, 1] + torch.arange(width, device=images.device)) % side
    layer = _coloured(ice[which, rows[:, :, None], columns[:, None, :]], which.flatten())
    return constants["image_weight"] * images + constants["frost_weight"] * layer


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
