"""Random numbers that belong to an image, not to a batch."""
# n images

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pidformer.data.noise import indexed_keys, normal_noise, uniform_noise
from pidformer.errors import InputError


@dataclass(frozen=True)
class Draws:
    """What an attack may draw for its images: a function of (path, row) alone.

    `path` starts with the seed and says what the numbers are for (`at`); `rows` are the places of
    the images in the whole set, so a part of a batch (`of`) draws what it would have drawn in it.
    """

    path: tuple[int, ...]
    rows: Tensor

    @classmethod
    def of_batch(cls, images: Tensor, seed: int, offset: int) -> Draws:
        """The draws of a batch whose first image is image `offset` of the whole set."""
        if seed < 0 or offset < 0:
            raise InputError(f"seed and offset must not be negative, got {seed} and {offset}")
        return cls((seed,), torch.arange(offset, offset + len(images), device=images.device))

    def at(self, *place: int) -> Draws:
        """The same rows, for another purpose."""
        return Draws((*self.path, *place), self.rows)

    def of(self, index: Tensor) -> Draws:
        """The same purpose, for some of the rows."""
        return Draws(self.path, self.rows[index])

    def keys(self, count: int = 1) -> Tensor:
        """`count` independent keys a row, (n * count, 2), those of one row next to each other."""
        words = np.random.SeedSequence(self.path).generate_state(count).astype(np.int64)
        words_here = torch.from_numpy(words).to(self.rows.device)
        rows = self.rows.repeat_interleave(count)
        return torch.stack([words_here.repeat(len(self.rows)), rows], dim=1)

    def uniform(self, *shape: int) -> Tensor:
        """U(0, 1] of shape (n, *shape)."""
        return uniform_noise(self.keys(), math.prod(shape)).view(-1, *shape)

    def normal(self, *shape: int) -> Tensor:
        """N(0, 1) of shape (n, *shape)."""
        # Both words of a key know the row: one gives the radius of Box-Muller, one the angle.
        first, second = np.random.SeedSequence(self.path).generate_state(2).tolist()
        keys = indexed_keys(first, second, self.rows)
        return normal_noise(keys, math.prod(shape)).view(-1, *shape)


def random_signs(keys: Tensor, count: int) -> Tensor:
    """+1 or -1 with equal chances, (n, count), row k from keys[k]: sixteen from each number."""
    numbers = (uniform_noise(keys, -(-count // 16)) * 65536).to(torch.int32)
    shifts = torch.arange(16, device=keys.device, dtype=torch.int32)
    bits = (numbers[..., None] >> shifts) & 1
    return bits.flatten(1)[:, :count].float().mul_(2).sub_(1)
