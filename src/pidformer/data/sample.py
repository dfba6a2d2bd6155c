"""A seeded sample of an image set as one batch."""

from __future__ import annotations

import torch

from pidformer.data.images import EvalImages
from pidformer.data.loaders import Batch
from pidformer.data.sources import ImageSource
from pidformer.data.views import sample
from pidformer.errors import InputError


def sample_images(
    source: ImageSource,
    count: int = 1000,
    seed: int = 0,
    *,
    image_size: int,
    crop_ratio: float = 0.875,
    device: str | torch.device = "cpu",
    corrupt_limit: float = 0.001,
) -> Batch:
    """`count` images drawn with `seed`, all if there are fewer: (count, C, S, S) in [0, 1].

    Prepared as for evaluation. The same images whatever the model, and those of a smaller count
    are among those of a larger one (`data.views.sample`). Unreadable ones are left out, up to
    `corrupt_limit` of the sample.
    """
    if count < 1:
        raise InputError(f"the number of images must be at least 1, got {count}")
    batches = list(
        EvalImages(
            sample(source, count, seed),
            image_size=image_size,
            batch_size=256,
            crop_ratio=crop_ratio,
            device=device,
            resident=False,
            corrupt_limit=corrupt_limit,
        )
    )
    if not batches:
        raise InputError("the image set has no readable image; there is nothing to measure")
    images, labels = zip(*batches, strict=True)
    return Batch(torch.cat(images), torch.cat(labels))
