"""Random fields for a batch in which image k's numbers depend on its index alone."""

import math
import zlib

import numpy as np
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
