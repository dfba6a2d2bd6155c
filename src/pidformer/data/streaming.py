"""Image sets that do not fit: decoded and augmented one by one, in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from timm.data.auto_augment import RandAugment, posterize, rand_augment_transform
from timm.data.transforms import RandomResizedCropAndInterpolation
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from pidformer.data.augment import Augment
from pidformer.data.corrupt import CorruptTally, first_readable
from pidformer.data.pictures import fit, pixels
from pidformer.data.plan import Plan
from pidformer.data.randomness import Purpose, seeded_globals
from pidformer.data.sources import ImageSource

Transform = Callable[[Image.Image], Image.Image]
Sample = tuple[np.ndarray | None, int, list[int]]  # pixels, label, indices that were unreadable


class Loaded(NamedTuple):
    """A batch as the workers hand it over: what could be read, and what could not."""

    images: Tensor  # uint8 (B, C, S, S)
    labels: Tensor  # (B,)
    unreadable: list[int]


class TrainingSamples(Dataset[Sample]):
    """Samples by (index, epoch, position in the epoch): the same whichever worker makes them."""

    def __init__(self, source: ImageSource, transform: Transform, seed: int, attempts: int) -> None:
        self._source = source
        self._transform = transform
        self._seed = seed
        self._attempts = attempts

    def __getitem__(self, place: tuple[int, int, int]) -> Sample:
        index, epoch, position = place
        image, index, unreadable = first_readable(self._source, index, self._attempts)
        if image is None:
            return None, -1, unreadable
        with seeded_globals(self._seed, Purpose.SAMPLE, epoch, position):
            image = self._transform(image)
        return pixels(image), int(self._source.labels[index]), unreadable


class EvaluationSamples(Dataset[Sample]):
    """Samples by index; an unreadable one is reported and left out."""

    def __init__(self, source: ImageSource, prepare: Transform) -> None:
        self._source = source
        self._prepare = prepare

    def __getitem__(self, index: int) -> Sample:
        image, _, unreadable = first_readable(self._source, index, attempts=1)
        if image is None:
            return None, -1, unreadable
        return pixels(self._prepare(image)), int(self._source.labels[index]), unreadable


class StreamedBatches:
    """Training batches from a DataLoader, uint8 (B, C, S, S) with labels (B,) on the device."""

    def __init__(
        self,
        source: ImageSource,
        plan: Plan,
        transform: Transform,
        device: torch.device,
        tally: CorruptTally,
        num_workers: int,
    ) -> None:
        # One attempt more than are allowed: past them the tally stops the run anyway.
        self._samples = TrainingSamples(source, transform, plan.seed, tally.allowed + 1)
        self._plan = plan
        self._device = device
        self._tally = tally
        self._num_workers = num_workers

    def batches(self, epoch: int, start_step: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = self._plan.order(epoch)[:, self._plan.local]
        first = self._plan.local.start
        places = (  # made as they are needed: an epoch of ImageNet has a million
            [
                (index, epoch, position)
                for position, index in enumerate(
                    order[step].tolist(), step * self._plan.batch_size + first
                )
            ]
            for step in range(start_step, len(order))
        )
        return load_batches(self._samples, places, self._device, self._num_workers, self._tally)


def load_batches(
    samples: Dataset[Sample],
    batches: Iterable[list[Any]],
    device: torch.device,
    num_workers: int,
    tally: CorruptTally,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each batch of `samples` as (images, labels) on the device; unreadable ones go to `tally`."""
    loader = DataLoader(
        samples,
        batch_sampler=batches,
        num_workers=num_workers,
        collate_fn=_collate,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),  # or it would draw from the caller's global one
    )
    for images, labels, unreadable in loader:
        tally.add(unreadable)
        if len(labels):
            yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def train_transform(augment: Augment, image_size: int, mean: tuple[float, ...]) -> Transform:
    """timm's training pipeline up to, and without, the conversion to a tensor.

    Crop (bicubic), flip, RandAugment filling with the mean colour: the list that
    `timm.data.create_transform(is_training=True)` builds, in its order. Erasing and mixing follow
    in batches on the device.
    """
    steps: list[Callable[[Any], Any]] = []
    if augment.crop == "resized":
        steps.append(
            RandomResizedCropAndInterpolation(
                image_size, scale=augment.scale, ratio=augment.ratio, interpolation="bicubic"
            )
        )
    else:
        steps.append(partial(fit, height=image_size, width=image_size))
    if augment.crop == "padded":
        steps.append(transforms.RandomCrop(image_size, padding=augment.padding))
    if augment.flip > 0:
        steps.append(transforms.RandomHorizontalFlip(augment.flip))
    if augment.rand_augment is not None:
        levels = tuple(min(255, round(255 * value)) for value in mean)
        options = {
            "translate_const": int(image_size * 0.45),
            "img_mean": levels if len(levels) == 3 else levels[0],
            "interpolation": Image.Resampling.BICUBIC,
        }
        steps.append(_with_all_bits(rand_augment_transform(augment.rand_augment, options)))
    transform: Transform = transforms.Compose(steps)
    return transform


def _with_all_bits(rand_augment: RandAugment) -> RandAugment:
    """RandAugment whose Posterize may keep no bit at all, which is a black image.

    "inc1" strings reach that at full magnitude; timm hands it to Pillow, which now refuses.
    """
    for op in rand_augment.ops:
        if op.aug_fn is posterize:
            op.aug_fn = _posterize
    return rand_augment


def _posterize(image: Image.Image, bits: int, **options: Any) -> Image.Image:
    if bits < 1:
        return Image.new(image.mode, image.size)
    reduced: Image.Image = posterize(image, bits, **options)
    return reduced


def _collate(samples: list[Sample]) -> Loaded:
    images = [torch.from_numpy(image) for image, _, _ in samples if image is not None]
    labels = [label for image, label, _ in samples if image is not None]
    unreadable = sorted({index for _, _, indices in samples for index in indices})
    stacked = torch.stack(images) if images else torch.empty(0, dtype=torch.uint8)
    return Loaded(stacked, torch.tensor(labels, dtype=torch.int64), unreadable)
