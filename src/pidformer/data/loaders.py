"""Batches for training and for evaluation, as floats in [0, 1].

Pixels are not normalised: the model's first layer does that, so attacks and corruptions act on
the picture itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pidformer.data.augment import Augment
from pidformer.data.batchwise import erase, erase_boxes
from pidformer.data.checks import (
    Resident,
    check_colour,
    check_counts,
    check_rank,
    check_resident,
    check_start,
    check_training_set,
)
from pidformer.data.corrupt import CorruptTally
from pidformer.data.mixing import draw_mix, mix_images, soft_targets
from pidformer.data.pictures import fit_for_evaluation
from pidformer.data.plan import Plan
from pidformer.data.randomness import Purpose, numbers
from pidformer.data.resident import ResidentBatches, decode_all
from pidformer.data.sources import ImageSource
from pidformer.data.storage import choose_storage, fits_in_memory
from pidformer.data.streaming import (
    EvaluationSamples,
    StreamedBatches,
    load_batches,
    train_transform,
)
from pidformer.devices import as_device
from pidformer.errors import InputError


class Batch(NamedTuple):
    """Images (B, C, S, S) in [0, 1] and their targets: labels (B,) or probabilities (B, K)."""

    images: Tensor
    targets: Tensor


class TrainImages:
    """Augmented, shuffled batches of one process.

    `batch_size` is the global batch, of which this process (`rank` of `world_size`) yields its
    part. Every random number is a function of (seed, epoch, step, position in the global batch)
    alone: a run resumed with `start_step` continues bit for bit, and processes and workers may
    come and go without changing a batch.

    `resident` keeps the decoded set on the device and augments there; "auto" does so when the set
    fits (a quarter of the free memory, 8 GiB at most), needs no RandAugment, and its images are
    not much larger than `image_size`. Otherwise `num_workers` processes stream it.

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
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
        resident: Resident = "auto",
        num_workers: int = 0,
        corrupt_limit: float = 0.001,
    ) -> None:
        check_counts(image_size=image_size, num_workers=num_workers)
        check_training_set(source)
        check_colour("mean", mean, source.channels)
        check_colour("std", std, source.channels)
        self.augment = augment
        self.num_classes = len(source.classes)
        self._plan = Plan(
            images=len(source),
            batch_size=batch_size,
            repeats=augment.repeats,
            seed=seed,
            rank=rank,
            world_size=world_size,
            is_mixing=augment.is_mixing,
        )
        self._device = as_device(device)
        self._mean = torch.tensor(mean, dtype=torch.float32, device=self._device)
        self._std = torch.tensor(std, dtype=torch.float32, device=self._device)
        self._tally = CorruptTally(source, corrupt_limit, "the next readable image takes its place")
        self._source, self._size, self._num_workers = source, image_size, num_workers
        self._fill = tuple(mean)
        self._open(resident)

    def _open(self, resident: Resident) -> None:
        source, size, device = self._source, self._size, self._device
        stored = choose_storage(source, size, self.augment, device, resident)
        self.is_resident = stored is not None
        self._front: ResidentBatches | StreamedBatches
        if stored is not None:
            self._front = ResidentBatches(
                source, self._plan, self.augment, size, stored, device, self._tally
            )
        else:
            transform = train_transform(self.augment, size, self._fill)
            self._front = StreamedBatches(
                source, self._plan, transform, device, self._tally, self._num_workers
            )

    def load_as(self, *, resident: bool | None) -> None:
        """Keep the images on the device or stream them, as a run did that is to go on exactly.

        Either way has random numbers of its own, and "auto" goes by the memory that is free now.
        None (not known) changes nothing.
        """
        if resident is not None and resident != self.is_resident:
            self._open(resident)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in an epoch; the images left over sit this epoch out."""
        return self._plan.steps_per_epoch

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from `start_step` on."""
        check_start(epoch, start_step, self.steps_per_epoch)
        return self._batches(epoch, start_step)

    def _batches(self, epoch: int, start_step: int) -> Iterator[Batch]:
        front = self._front.batches(epoch, start_step)
        for step, (images, labels) in enumerate(front, start_step):
            yield self._finished(images.float().div_(255), labels, epoch, step)

    def _finished(self, images: Tensor, labels: Tensor, epoch: int, step: int) -> Batch:
        """Erase, then mix: the steps that both ways of loading share."""
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
        rows, boxes = erase_boxes(
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
        return erase(images, index, box, key, self._mean, self._std)


class EvalImages:
    """Unaugmented batches in order; the last may be smaller.

    Short side to round(image_size / crop_ratio), bicubic, then the central square; an image that
    already is image_size x image_size is taken as it is. Process `rank` of `world_size` takes
    every world_size-th image, `batch_size` at a time. Unreadable images are left out and counted
    in `skipped`, up to `corrupt_limit` of the set.
    """

    def __init__(
        self,
        source: ImageSource,
        *,
        image_size: int,
        batch_size: int,
        crop_ratio: float = 0.875,
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
        resident: Resident = "auto",
        num_workers: int = 0,
        corrupt_limit: float = 0.001,
    ) -> None:
        check_counts(image_size=image_size, batch_size=batch_size, num_workers=num_workers)
        check_rank(rank, world_size)
        if not isinstance(crop_ratio, int | float) or not 0 < crop_ratio <= 1:
            raise InputError(f"crop_ratio must be in (0, 1], got {crop_ratio!r}; DeiT uses 0.875")
        self.num_classes = len(source.classes)
        self._source = source
        self._device = as_device(device)
        self._num_workers = num_workers
        self._batch_size = batch_size
        self._indices = np.arange(rank, len(source), world_size)
        self._prepare = partial(fit_for_evaluation, size=image_size, crop_ratio=crop_ratio)
        self._tally = CorruptTally(source, corrupt_limit, "left out")
        image_bytes = source.channels * image_size**2
        check_resident(resident)
        if resident == "auto":
            resident = fits_in_memory(len(self._indices) * image_bytes, self._device)
        self.is_resident = resident
        if self.is_resident:
            size = (image_size, image_size)
            self._images, unreadable = decode_all(
                source, self._indices, self._prepare, size, self._device, show_progress=rank == 0
            )
            self._tally.add(unreadable)
            self._is_whole = ~np.isin(self._indices, unreadable)
            self._labels = source.labels[self._indices].to(self._device)

    @property
    def skipped(self) -> int:
        """Unreadable images met so far."""
        return len(self._tally)

    def __len__(self) -> int:
        return math.ceil(len(self._indices) / self._batch_size)

    def __iter__(self) -> Iterator[Batch]:
        batches = self._resident_batches() if self.is_resident else self._streamed_batches()
        for images, labels in batches:
            yield Batch(images.float().div_(255), labels)

    def _resident_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self._indices), self._batch_size):
            part = slice(start, start + self._batch_size)
            images, labels, is_whole = self._images[part], self._labels[part], self._is_whole[part]
            if not is_whole.all():
                rows = torch.from_numpy(np.flatnonzero(is_whole)).to(self._device)
                images, labels = images[rows], labels[rows]
            if len(labels):
                yield images, labels

    def _streamed_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        indices, size = self._indices.tolist(), self._batch_size
        batches = [indices[start : start + size] for start in range(0, len(indices), size)]
        samples = EvaluationSamples(self._source, self._prepare)
        return load_batches(samples, batches, self._device, self._num_workers, self._tally)
