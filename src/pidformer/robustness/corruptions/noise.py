"""Noise: Gaussian, shot, impulse and speckle."""

from functools import lru_cache

import numpy as np
import scipy
import torch
from torch import Tensor

from pidformer.robustness.corruptions.filters import RandomFields

_LEVELS = 256


def gaussian_noise(images: Tensor, draws: RandomFields, sigma: float) -> Tensor:
    """x + N(0, sigma), independent in each pixel and channel."""
    return draws.normal("noise", *images.shape[1:]).double().mul_(sigma).add_(images)


def speckle_noise(images: Tensor, draws: RandomFields, sigma: float) -> Tensor:
    """x + x * N(0, sigma)."""
    noise = draws.normal("noise", *images.shape[1:]).double()
    return noise.mul_(sigma).mul_(images).add_(images)


def shot_noise(images: Tensor, draws: RandomFields, rate: float) -> Tensor:
    """Poisson(x * rate) / rate.

    By inversion: the count is the number of values of the distribution function that 32 random
    bits have passed. There are 256 intensities, so all functions fit one sorted table, with the
    intensity in the bits above, and one search answers every pixel.
    """
    table = torch.from_numpy(_poisson_table(rate)).to(images.device)
    level = (images * (_LEVELS - 1)).round().long()
    bits = draws.bits("noise", *images.shape[1:])
    place = torch.searchsorted(table, (level << 32) + bits, right=True)
    return (place - level * (len(table) // _LEVELS)).double() / rate


def impulse_noise(images: Tensor, draws: RandomFields, share: float) -> Tensor:
    """A `share` of all entries (pixel and channel) becomes 0 or 1, with equal chance."""
    chance = draws.uniform("noise", *images.shape[1:])
    return images.masked_fill(chance < share, 1.0).masked_fill_(chance < share / 2, 0.0)


@lru_cache(maxsize=8)
def _poisson_table(rate: float) -> np.ndarray:
    """Row v: floor(2^32 * P(Poisson(v / 255 * rate) <= k)) + (v << 32) for k = 0, 1, ..."""
    largest = int(scipy.stats.poisson.isf(2.0**-34, rate)) + 1
    levels = np.arange(_LEVELS)[:, None]
    passed = scipy.stats.poisson.cdf(np.arange(largest), levels / (_LEVELS - 1) * rate)
    return (np.floor(passed * 2.0**32).astype(np.int64) + (levels << 32)).ravel()
