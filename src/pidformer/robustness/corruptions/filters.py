"""Eight bits, linear filters and resampling.

Definitions start and end with 8-bit levels; between, pixels are level / 255 in float64. In float32
a sum that should end on a whole level misses it by enough for the truncation to take the level
below, and its last bits depend on how a library splits a batch and on TF32.
"""

import math
import zlib
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from scipy.fft import next_fast_len
from torch import Tensor

from pidformer.data.noise import indexed_keys, normal_noise, random_bits, uniform_noise


class RandomFields:
    """The random numbers of one corruption at one severity.

    A number is a hash of (seed, corruption, severity, the image's index, what it is for, its
    place), so neither the batch size nor the order of the calls changes it.
    """

    def __init__(self, seed: int, name: str, severity: int, indices: Tensor) -> None:
        self._place = (seed, zlib.crc32(name.encode()), severity)
        self._indices = indices

    def normal(self, purpose: str, *shape: int) -> Tensor:
        """N(0, 1), float32 (B, *shape)."""
        return normal_noise(self._keys(purpose), math.prod(shape)).view(-1, *shape)

    def uniform(self, purpose: str, *shape: int) -> Tensor:
        """U(0, 1), float32 (B, *shape)."""
        return uniform_noise(self._keys(purpose), math.prod(shape)).view(-1, *shape)

    def bits(self, purpose: str, *shape: int) -> Tensor:
        """Uniform integers in [0, 2^32), int64 (B, *shape)."""
        return random_bits(self._keys(purpose), math.prod(shape)).view(-1, *shape)

    def integers(self, purpose: str, bound: int, *shape: int) -> Tensor:
        """Uniform integers in [0, bound), int64 (B, *shape)."""
        return (self.bits(purpose, *shape) * bound) >> 32

    def _keys(self, purpose: str) -> Tensor:
        seed, *place = self._place
        sequence = np.random.SeedSequence(seed, spawn_key=(*place, zlib.crc32(purpose.encode())))
        first, second = (int(word) for word in sequence.generate_state(2))
        return indexed_keys(first, second, self._indices)


# B images, C channels, H x W pixels

_SLACK = 1e-9  # of a level: 99.9999999999 is 100


def to_8_bit(images: Tensor) -> Tensor:
    """Clip to [0, 1], times 255, truncate; the level / 255 in float64."""
    return images.double().clamp(0, 1).mul_(255).add_(_SLACK).floor_().div_(255)


def round_8_bit(images: Tensor) -> Tensor:
    """The nearest of the 256 levels, / 255 in float64."""
    return images.to(torch.float64, copy=True).mul_(255).round_().div_(255)


def border(size: int, before: int, after: int, mode: str) -> np.ndarray:
    """Which pixel stands at each place from -before to size + after - 1.

    `nearest` repeats the edge (a a | a b c), `reflect` mirrors at the edge (b a | a b c),
    `mirror` at the edge pixel's centre (c b | a b c; OpenCV's reflect-101).
    """
    place = np.arange(-before, size + after)
    if mode == "nearest":
        return place.clip(0, size - 1)
    if mode == "reflect":
        place = place % (2 * size)
        return np.minimum(place, 2 * size - 1 - place)
    place = place % max(2 * size - 2, 1)
    return np.minimum(place, 2 * size - 2 - place)


def correlate(images: Tensor, kernels: Tensor, mode: str) -> Tensor:
    """sum_ij kernel[i, j] * image[y + i - r, x + j - r] for kernels (1 or B, 2r+1, 2r+1)."""
    height, width = images.shape[-2:]
    reach = kernels.shape[-1] // 2
    rows, columns = (
        torch.from_numpy(border(size, reach, reach, mode)).to(images.device)
        for size in (height, width)
    )
    padded = images.double()[:, :, rows][:, :, :, columns]
    shape = [next_fast_len(size + 2 * reach, real=True) for size in (height, width)]
    spectrum = torch.fft.rfft2(padded, s=shape)
    spectrum *= torch.fft.rfft2(kernels.double(), s=shape).conj()[:, None]
    return torch.fft.irfft2(spectrum, s=shape)[:, :, :height, :width]


def gaussian(images: Tensor, sigma: float, mode: str = "nearest", truncate: float = 4.0) -> Tensor:
    """Gaussian smoothing of the last two dimensions, kernel cut at truncate * sigma."""
    return _both_ways(images, lambda size: _gaussian_matrix(size, float(sigma), mode, truncate))


def resize_centre(images: Tensor, factor: float) -> Tensor:
    """Enlarge the centre by `factor`, linearly, and keep the size (align-corners sampling)."""
    return _both_ways(images, lambda size: _zoom_matrix(size, float(factor)))


def _both_ways(images: Tensor, matrix: Callable[[int], np.ndarray]) -> Tensor:
    """A linear map of lines of each size, along columns and along rows."""
    rows, columns = (torch.from_numpy(matrix(n)).to(images.device) for n in images.shape[-2:])
    return rows @ images.double() @ columns.T


@lru_cache(maxsize=64)
def _gaussian_matrix(size: int, sigma: float, mode: str, truncate: float) -> np.ndarray:
    reach = int(truncate * sigma + 0.5)
    offset = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (offset / sigma) ** 2) if reach else np.ones(1)
    return smoothing(size, weights, mode)


def smoothing(size: int, weights: np.ndarray, mode: str) -> np.ndarray:
    """The (size, size) matrix that correlates a line with `weights`, normalised, of odd length."""
    reach = len(weights) // 2
    source = border(size, reach, reach, mode)
    matrix = np.zeros((size, size))
    for start, weight in enumerate(weights / weights.sum()):
        np.add.at(matrix, (np.arange(size), source[start : start + size]), weight)
    return matrix


@lru_cache(maxsize=64)
def _zoom_matrix(size: int, factor: float) -> np.ndarray:
    crop = math.ceil(size / factor)
    enlarged = round(crop * factor)
    place = (np.arange(size) + (enlarged - size) // 2) * ((crop - 1) / max(enlarged - 1, 1))
    low = np.minimum(place.astype(int), max(crop - 2, 0))
    matrix = np.zeros((size, size))
    start = (size - crop) // 2
    matrix[np.arange(size), start + low] = 1 - (place - low)
    matrix[np.arange(size), start + np.minimum(low + 1, crop - 1)] += place - low
    return matrix
