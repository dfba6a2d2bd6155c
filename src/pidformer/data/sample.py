"""A seeded sample of an image set: the same pictures for every model that is measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pidformer.data.loaders import Batch, EvalImages
from pidformer.data.sources import ImageSource
from pidformer.errors import InputError


@dataclass(frozen=True)
class Sample:
    """Some images of a source, in the source's order."""

    source: ImageSource
    rows: np.ndarray

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.classes

    @property
    def labels(self) -> Tensor:
        return self.source.labels[torch.from_numpy(self.rows)]

    @property
    def channels(self) -> int:
        return self.source.channels

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        return self.source.name(int(self.rows[index]))

    def decode(self, index: int) -> Image.Image:
        return self.source.decode(int(self.rows[index]))


def draw_sample(source: ImageSource, count: int = 1000, seed: int = 0) -> Sample:
    """`count` images of `source` drawn without replacement, or all if there are fewer."""
    if count < 1:
        raise InputError(f"the number of images must be at least 1, got {count}")
    if not len(source):
        raise InputError("the image set is empty; there is nothing to measure")
    if count >= len(source):
        return Sample(source, np.arange(len(source)))
    drawn = np.random.default_rng(seed).choice(len(source), size=count, replace=False)
    return Sample(source, np.sort(drawn))


def sample_images(
    source: ImageSource,
    count: int = 1000,
    seed: int = 0,
    *,
    image_size: int,
    crop_ratio: float = 0.875,
    device: str | torch.device = "cpu",
) -> Batch:
    """`draw_sample` as one batch, prepared as for evaluation: images (count, C, S, S) in [0, 1]."""
    batches = list(
        EvalImages(
            draw_sample(source, count, seed),
            image_size=image_size,
            batch_size=256,
            crop_ratio=crop_ratio,
            device=device,
            resident=False,
        )
    )
    if not batches:
        raise InputError("none of the sampled images can be read")
    images, labels = zip(*batches, strict=True)
    return Batch(torch.cat(images), torch.cat(labels))
