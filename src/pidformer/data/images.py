"""Batches of labelled images for training and for evaluation, as floats in [0, 1].

Pixels are not normalised: the model's first layer does that, so attacks and corruptions act on
the picture itself.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Unpack

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pidformer.data import arguments, crops
from pidformer.data.augment import (
    Augment,
    Transform,
    draw_mix,
    mix_images,
    soft_targets,
    train_transform,
)
from pidformer.data.loaders import Batch, Loader, Options, Place, Tensors, TrainLoader, groups
from pidformer.data.pictures import evaluation_side, fit, fit_for_evaluation, pixels
from pidformer.data.randomness import Purpose, numbers, seeded_globals
from pidformer.data.sources import ImageSource, check_detail, stored_side
from pidformer.data.storage import choose_storage, fits_in_memory
from pidformer.errors import InputError


class TrainImages(TrainLoader[Image.Image]):
    """Augmented, shuffled batches of one process; images that fill no batch sit the epoch out.

    `batch_size` is the global batch, of which this process (`rank` of `world_size`) yields its
    part. Every random number is a function of (seed, epoch, step, position in the global batch)
    alone: a run resumed with `start_step` continues bit for bit, and processes and workers may
    come and go without changing a batch.

    `resident` keeps the decoded set on the device and augments there; "auto" does so when the set
    fits (a quarter of the free memory, 8 GiB at most), needs no RandAugment, and its images are
    not much larger than `image_size`. Otherwise `num_workers` processes stream it. Either way
    crops and flips have one distribution, but random numbers of their own.

    An unreadable image is replaced by the next readable one, up to `corrupt_limit` of the set.
    """

    def __init__(
        self,
        source: ImageSource,
        *,
        image_size: int,
        batch_size: int,
        augment: Augment,
        mean: Sequence[float],
        std: Sequence[float],
        seed: int = 0,
        **options: Unpack[Options],
    ) -> None:
        arguments.check_counts(image_size=image_size)
        if not len(source) or not source.classes or int(source.labels.min()) < 0:
            raise InputError(
                "a training set needs images and a class for each; this one has "
                f"{len(source)} images, {len(source.classes)} classes and "
                f"{int((source.labels < 0).sum())} images without a class; choose another split"
            )
        check_detail(source, image_size)
        arguments.check_colour("mean", mean, source.channels)
        arguments.check_colour("std", std, source.channels)
        super().__init__(
            source,
            noun="image",
            batch_size=batch_size,
            seed=seed,
            repeats=augment.repeats,
            is_mixing=augment.is_mixing,
            **options,
        )
        self.augment = augment
        self._set, self._size, self._fill = source, image_size, tuple(mean)
        self._mean, self._std = (
            torch.tensor(values, dtype=torch.float32, device=self._device) for values in (mean, std)
        )
        self._open()

    def _open(self) -> None:
        source, self._kept = self._set, ()
        stored = choose_storage(source, self._size, self.augment, self._device, self._resident)
        if stored is not None:
            self._keep(lambda image: (pixels(fit(image, *stored)),), (source.channels, *stored))
            self._kept += (source.labels.to(self._device),)

    def load_as(self, *, resident: bool | None) -> None:
        """Keep the images on the device or stream them, as a run did that is to go on exactly.

        Either way has random numbers of its own, and "auto" goes by the memory that is free now.
        None (not known) changes nothing.
        """
        if resident is not None and resident != self.is_resident:
            self._resident = resident
            self._open()

    def _make(self) -> Callable[..., Tensors]:
        transform = train_transform(self.augment, self._size, self._fill)
        plan = self._plan
        return partial(_transformed, transform, self._set.labels, plan.seed, plan.batch_size)

    def _augmented(self, tensors: Tensors, epoch: int, step: int) -> Tensors:
        """Crop and flip, uint8 (B, C, S, S), with this process's part of the batch's numbers."""
        images, labels = tensors
        augment, count = self.augment, self._plan.batch_size
        rng = numbers(self._plan.seed, Purpose.CROP, epoch, step)
        flips = rng.random(count) < augment.flip
        if augment.crop == "resized":
            height, width = images.shape[-2:]
            boxes = crops.crop_boxes(rng, count, height, width, augment.scale, augment.ratio)
            images = crops.resized_crop(images, self._local(boxes), self._size)
        elif augment.crop == "padded":
            corners = rng.integers(2 * augment.padding, size=(count, 2), endpoint=True)
            images = crops.padded_crop(images, self._local(corners), augment.padding)
        if augment.flip > 0:
            images = crops.flip_left_right(images, self._local(flips))
        return images, labels

    def _local(self, drawn: np.ndarray) -> Tensor:
        return torch.from_numpy(drawn[self._plan.local]).to(self._device, non_blocking=True)

    def _finished(self, tensors: Tensors, epoch: int, step: int) -> Batch:
        levels, labels = tensors
        images = levels.float().div_(255)
        augment, seed = self.augment, self._plan.seed
        if augment.erase > 0:
            images = self._erased(images, numbers(seed, Purpose.ERASE, epoch, step))
        if not augment.has_soft_targets:
            return Batch(images, labels)
        rng = numbers(seed, Purpose.MIX, epoch, step)
        mix = draw_mix(rng, augment, images.shape[-2], images.shape[-1])
        targets = soft_targets(labels, self.num_classes, mix, augment.label_smoothing)
        return Batch(mix_images(images, mix), targets)

    def _erased(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        count, local = self._plan.batch_size, self._plan.local
        rows, boxes = crops.erase_boxes(
            rng, count, images.shape[-2], images.shape[-1], self.augment.erase
        )
        keys = rng.integers(2**32, size=(len(rows), 2))
        is_local = (rows >= local.start) & (rows < local.stop)
        if not is_local.any():
            return images
        index, box, key = (
            torch.from_numpy(drawn[is_local]).to(self._device, non_blocking=True)
            for drawn in (rows - local.start, boxes, keys)
        )
        return crops.erase(images, index, box, key, self._mean, self._std)


class EvalImages(Loader[Image.Image]):
    """Unaugmented batches in order; the last may be smaller.

    Short side to floor(image_size / crop_ratio), bicubic, then the central square; an image that
    already is image_size x image_size is taken as it is, and a cache made with that short side
    gives the same pixels as the set itself. Process `rank` of `world_size` takes
    every world_size-th batch. Unreadable images are left out and counted in `skipped`, up to
    `corrupt_limit` of the set.
    """

    def __init__(
        self,
        source: ImageSource,
        *,
        image_size: int,
        batch_size: int,
        crop_ratio: float = 0.875,
        **options: Unpack[Options],
    ) -> None:
        arguments.check_counts(image_size=image_size, batch_size=batch_size)
        if not isinstance(crop_ratio, int | float) or not 0 < crop_ratio <= 1:
            raise InputError(f"crop_ratio must be in (0, 1], got {crop_ratio!r}; DeiT uses 0.875")
        check_detail(source, short := evaluation_side(image_size, crop_ratio))
        if (stored_side(source) or short) > short:
            warnings.warn(
                f"the cache's images, shrunk to a short side of {stored_side(source)}, are shrunk "
                f"again to {short}: pixels may differ from the set's own by a few levels",
                stacklevel=2,
            )
        super().__init__(source, consequence="left out", **options)
        self._batch_size, self._labels = batch_size, source.labels
        batches = groups(np.arange(len(source)), batch_size)
        own = batches[self._rank :: self._world_size]
        self._indices = np.concatenate([np.arange(0), *own])
        self._prepare = partial(fit_for_evaluation, size=image_size, crop_ratio=crop_ratio)
        shape = (source.channels, image_size, image_size)
        resident = self._resident
        if resident == "auto":
            resident = fits_in_memory(len(self._indices) * math.prod(shape), self._device)
        if resident:
            self._keep(lambda image: (pixels(self._prepare(image)),), shape)
            self._kept += (source.labels[self._indices].to(self._device),)

    def __len__(self) -> int:
        return math.ceil(len(self._indices) / self._batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return (batch for _, batch in self.placed())

    def placed(self) -> Iterator[tuple[int, Batch]]:
        """The batches, each with the number of readable images of the whole set before it."""
        ways = self._from_device if self.is_resident else self._from_workers
        for (images, labels), first in ways():
            lost = sum(index < first for index in self._unreadable)
            yield first - lost, Batch(images.float().div_(255), labels)

    def lost(self) -> set[int]:
        """Unreadable images met so far."""
        return set(self._unreadable)

    def learn(self, lost: set[int]) -> None:
        """Also count what other processes could not read: later places move."""
        self._count(lost)

    def _from_device(self) -> Iterator[tuple[Tensors, int]]:
        for rows in groups(np.arange(len(self._indices)), self._batch_size):
            if len(whole := rows[np.isin(rows, self._readable)]):
                yield self._rows(whole), int(self._indices[whole[0]])

    def _from_workers(self) -> Iterator[tuple[Tensors, int]]:
        parts = groups(self._indices, self._batch_size)
        places: Iterator[list[Place]] = ([(index,) for index in part.tolist()] for part in parts)
        make = partial(_prepared, self._prepare, self._labels)
        for loaded in self._stream(make, places):
            yield loaded.tensors, loaded.indices[0]


def _transformed(
    transform: Transform,
    labels: Tensor,
    seed: int,
    batch_size: int,
    image: Image.Image,
    index: int,
    epoch: int,
    step: int,
    position: int,
) -> Tensors:
    """A training sample; random numbers by its position in the epoch."""
    with seeded_globals(seed, Purpose.SAMPLE, epoch, step * batch_size + position):
        return _prepared(transform, labels, image, index)


def _prepared(prepare: Transform, labels: Tensor, image: Image.Image, index: int) -> Tensors:
    return torch.from_numpy(pixels(prepare(image))), labels[index]
