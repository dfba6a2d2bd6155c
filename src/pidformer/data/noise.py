"""Noise as a function of a key: the same on every device, process and batch split."""

import math

import torch
from torch import Tensor


def normal_noise(keys: Tensor, count: int) -> Tensor:
    """N(0, 1) numbers of shape (n, count), row k from keys[k] (int64 (n, 2), 32 bits each).

    A hash of (key, place) gives two uniform numbers, Box-Muller two normal ones. A generator would
    have to draw the noise of the whole global batch for each process to find its own part, and
    would differ between CPU and CUDA; this makes only what is used.
    """
    half = (count + 1) // 2
    place = _hash(torch.arange(half, device=keys.device, dtype=torch.int32))
    words = keys.to(torch.int32).unbind(1)
    first, second = (_hash(_hash(place ^ word[:, None]).add_(place)) for word in words)
    radius = _uniform(first).log_().mul_(-2).sqrt_()
    angle = _uniform(second).mul_(2 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :count]


def random_bits(keys: Tensor, count: int) -> Tensor:
    """32 random bits in int64 (n, count), row k from keys[k] (int64 (n, 2), 32 bits each)."""
    return _unsigned(_random_words(keys, count))


def uniform_noise(keys: Tensor, count: int) -> Tensor:
    """U(0, 1) numbers of shape (n, count), row k from keys[k]."""
    return _uniform(_random_words(keys, count))


def indexed_keys(first: int, second: int, indices: Tensor) -> Tensor:
    """Keys (n, 2) for these indices (int64) under one pair of 32-bit words."""
    words = torch.tensor([first, second]).to(indices.device, torch.int32)
    spread = _hash(indices.to(torch.int32))
    keys = [_hash(spread + words[0]), _hash(_hash(spread ^ 0x5BD1E995) + words[1])]
    return _unsigned(torch.stack(keys, dim=1))


def _random_words(keys: Tensor, count: int) -> Tensor:
    place = _hash(torch.arange(count, device=keys.device, dtype=torch.int32))
    first, second = keys.to(torch.int32).unbind(1)
    return _hash(_hash(_hash(place ^ first[:, None]).add_(place)).bitwise_xor_(second[:, None]))


def _hash(x: Tensor) -> Tensor:
    """Scatter 32 bits, held in int32: products keep their low half, shifts fill with zeros."""
    x = (((x >> 15) & 0x1FFFF).bitwise_xor_(x)).mul_(0x2C1B3C6D)
    x = (((x >> 12) & 0xFFFFF).bitwise_xor_(x)).mul_(0x297A2D39)
    return ((x >> 15) & 0x1FFFF).bitwise_xor_(x)


def _unsigned(x: Tensor) -> Tensor:
    """int32 as the int64 in [0, 2^32) with the same bits."""
    return x.long().bitwise_and_(0xFFFFFFFF)


def _uniform(x: Tensor) -> Tensor:
    """32 bits to (0, 1]."""
    return _unsigned(x).float().add_(0.5).mul_(2.0**-32)
