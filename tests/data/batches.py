"""Loaders for the tests, and equality of what they yield."""

from __future__ import annotations

import pytest
import torch

from pidformer.data import Augment, Batch, TrainImages
from tests.data.sets import memory_set

GREY = {"mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2)}


FULL = Augment(erase=0.5, mixup=0.8, cutmix=1.0, label_smoothing=0.1, repeats=2)


RAND = Augment(rand_augment="rand-m9-mstd0.5-inc1", erase=0.5, mixup=0.8, cutmix=1.0)


def loader(source=None, **options) -> TrainImages:
    options = {"image_size": 8, "batch_size": 8, "augment": FULL, **GREY, **options}
    return TrainImages(source or memory_set(), **options)


def same(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a.images, b.images) and torch.equal(a.targets, b.targets)
        for a, b in zip(first, second, strict=True)
    )


ways = pytest.mark.parametrize(
    ("augment", "resident"),
    [
        (FULL, True),
        (FULL, False),
        (RAND, False),
        (Augment(crop="padded"), True),
        (Augment(crop="none"), False),
    ],
    ids=["resident", "streamed", "rand-augment", "padded", "none"],
)
