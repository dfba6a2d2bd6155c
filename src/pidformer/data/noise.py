"""Noise as a function of a key: the same on every device, process and batch split."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def normal_noise(keys: Tensor, count: int) -> Tensor:
    """N(0, 1) numbers of shape (n, count), row k from keys[k] (int64 (n, 2), 32 bits each).

    A hash of (key, place) gives two uniform numbers, Box-Muller two normal ones. A generator would
    have to draw the noise of the whole global batch for each process to find its own part, and
    would differ between CPU and CUDA; this makes only what is used.
    """
    half = (count + 1) // 2
    place = _hash(torch.arange(half, device=keys.device))
    first, second = (_hash(_hash(place ^ key[:, None]) + place) for key in keys.unbind(1))
    radius = (-2 * _uniform(first).log()).sqrt_()
    angle = _uniform(second).mul_(2 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :count]


def uniform_noise(keys: Tensor, count: int) -> Tensor:
    """Uniform numbers in (0, 1] of shape (n, count), row k from keys[k] as in `normal_noise`."""
    place = _hash(torch.arange(count, device=keys.device))
    first, second = (_hash(_hash(place ^ key[:, None]) + place) for key in keys.unbind(1))
    return _uniform(_hash(first ^ second))


def _hash(x: Tensor) -> Tensor:
    """Scatter the low 32 bits; the multipliers stay below 2^31, so int64 never overflows."""
    x = x & _MASK
    x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & _MASK
    x = ((x ^ (x >> 12)) * 0x297A2D39) & _MASK
    return x ^ (x >> 15)


def _uniform(x: Tensor) -> Tensor:
    """32-bit integers to (0, 1]."""
    return x.float().add_(0.5).mul_(2.0**-32)
