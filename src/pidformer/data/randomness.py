"""Random numbers as pure functions of where they are used, never of what was drawn before.

A step's numbers depend on (seed, purpose, epoch, step) alone, so a resumed run continues bit for
bit, and neither the number of workers nor the number of processes changes a batch.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """What the numbers are for: each purpose has streams of its own."""

    ORDER = 0
    CROP = 1
    ERASE = 2
    MIX = 3
    SAMPLE = 4
    LIMIT = 5


def numbers(seed: int, purpose: Purpose, *place: int) -> np.random.Generator:
    """A fresh generator for one place, such as (epoch, step)."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, *place)))


def sampled(size: int, count: int, seed: int) -> np.ndarray:
    """Which of `size` inputs are in a sample of `count`, sorted."""
    return np.sort(numbers(seed, Purpose.LIMIT).permutation(size)[:count])


@contextmanager
def seeded_globals(seed: int, purpose: Purpose, *place: int) -> Iterator[None]:
    """Seed the generators that libraries draw from (random, NumPy, torch), then put them back."""
    words = _sequence(seed, purpose, *place).generate_state(3)
    python, legacy, generator = random.getstate(), np.random.get_state(), torch.default_generator
    tensors = generator.get_state()
    try:
        random.seed(int(words[0]))
        np.random.seed(words[1])
        generator.manual_seed(int(words[2]))
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        generator.set_state(tensors)


def _sequence(seed: int, purpose: Purpose, *place: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(int(purpose), *place))
