"""Batches of pairs for training and for evaluation: images in [0, 1], labels, 255 = ignore."""
# B pairs, S window

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pidformer.data.checks import (
    Resident,
    check_colour,
    check_counts,
    check_rank,
    check_resident,
    check_start,
)
from pidformer.data.corrupt import CorruptTally, first_readable
from pidformer.data.loaders import Batch
from pidformer.data.pictures import UnreadableImage, pixels
from pidformer.data.plan import Plan
from pidformer.data.randomness import Purpose, numbers
from pidformer.data.segmentation.augment import SegmentAugment, choose, uniform_numbers
from pidformer.data.segmentation.batchwise import augmented, is_inside, one_pair
from pidformer.data.segmentation.geometry import Scale, rescaled
from pidformer.data.segmentation.masks import IGNORED
from pidformer.data.segmentation.pair import SegmentSource
from pidformer.data.storage import fits_in_memory
from pidformer.devices import as_device
from pidformer.errors import InputError

CHUNK = 512
PROBES = 32


class TrainSegments:
    """Augmented, shuffled batches of one process: images (B, 3, S, S), labels int64 (B, S, S).

    As `TrainImages`: `batch_size` is the global batch, and every random number is a function of
    (seed, epoch, step, position in the batch) alone, so that resuming is exact and processes and
    workers change nothing. The last batch of an epoch is filled up with the epoch's first pairs.

    `resident` keeps the decoded pairs on the device and augments there in batches; "auto" does so
    when all have one size and fit (a quarter of the free memory, 8 GiB at most). Otherwise
    `num_workers` processes stream them, through the same operations.

    Outside a pair that is smaller than the window images have the colour `mean`, which
    normalisation makes zero, and labels are 255.
    """

    def __init__(
        self,
        source: SegmentSource,
        *,
        crop: int,
        scale: Scale,
        batch_size: int,
        augment: SegmentAugment,
        mean: Sequence[float],
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
        resident: Resident = "auto",
        num_workers: int = 0,
        corrupt_limit: float = 0.001,
    ) -> None:
        check_counts(crop=crop, num_workers=num_workers)
        check_resident(resident)
        check_colour("mean", mean, 3)
        self.num_classes = len(source.classes)
        self._source, self._augment = source, augment
        self._crop, self._scale = crop, scale
        self._device = as_device(device)
        self._mean = torch.tensor(mean, dtype=torch.float32, device=self._device)[:, None, None]
        self._plan = Plan(
            images=len(source),
            batch_size=batch_size,
            repeats=1,
            seed=seed,
            rank=rank,
            world_size=world_size,
            is_mixing=False,
            fills_last=True,
        )
        self._num_workers = num_workers
        self._tally = CorruptTally(source, corrupt_limit, "the next readable pair takes its place")
        sizes = some_sizes(source)
        _check_crop(crop, scale, augment, sizes)
        self._kept: _Kept | None = None
        if _may_stay(resident, sizes, len(source), self._device):
            self._kept = _keep(source, np.arange(len(source)), sizes, self._device, resident)
            if self._kept is not None:
                self._tally.add(self._kept.unreadable)

    @property
    def is_resident(self) -> bool:
        return self._kept is not None

    @property
    def steps_per_epoch(self) -> int:
        return self._plan.steps_per_epoch

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from `start_step` on."""
        check_start(epoch, start_step, self.steps_per_epoch)
        if self._kept is not None:
            return self._resident_batches(self._kept, epoch, start_step)
        return self._streamed_batches(epoch, start_step)

    def _resident_batches(self, kept: _Kept, epoch: int, start_step: int) -> Iterator[Batch]:
        local = kept.readable[self._plan.order(epoch)[start_step:, self._plan.local]]
        order = torch.from_numpy(local).to(self._device, non_blocking=True)
        stored = np.array([kept.images.shape[-2:]] * self._plan.local_size)
        for step, index in enumerate(order, start_step):
            rng = numbers(self._plan.seed, Purpose.CROP, epoch, step)
            drawn = uniform_numbers(rng, self._plan.batch_size)[self._plan.local]
            choices = choose(drawn, stored, self._augment, self._scale, self._crop)
            levels, labels = augmented(
                kept.images[index],
                kept.masks[index],
                choices,
                self._crop,
                self._augment.max_category,
            )
            size = torch.from_numpy(choices.size).to(self._device, non_blocking=True)
            yield self._finished(levels, labels, size)

    def _streamed_batches(self, epoch: int, start_step: int) -> Iterator[Batch]:
        plan = self._plan
        order = plan.order(epoch)[:, plan.local]
        places = (
            [
                (index, epoch, step, position)
                for position, index in enumerate(order[step].tolist(), plan.local.start)
            ]
            for step in range(start_step, len(order))
        )
        samples = _AugmentedPairs(
            self._source,
            self._augment,
            self._scale,
            self._crop,
            plan.seed,
            plan.batch_size,
            self._tally.allowed + 1,
        )
        for batch in _loaded(samples, places, self._device, self._num_workers):
            self._tally.add(index for sample in batch for index in sample.unreadable)
            whole = [sample for sample in batch if sample.image is not None]
            levels = torch.stack([sample.image for sample in whole])  # type: ignore[misc]
            labels = torch.stack([sample.mask for sample in whole])  # type: ignore[misc]
            size = torch.tensor([sample.size for sample in whole])
            moved = (t.to(self._device, non_blocking=True) for t in (levels, labels, size))
            yield self._finished(*moved)

    def _finished(self, levels: Tensor, labels: Tensor, size: Tensor) -> Batch:
        inside = is_inside(size, self._crop)[:, None]
        return Batch(torch.where(inside, levels.float() / 255, self._mean), labels.long())


class SegmentBatch(NamedTuple):
    """Pairs of one size: images (B, 3, H, W) in [0, 1], uint8 labels (B, H, W), their indices."""

    images: Tensor
    masks: Tensor
    indices: list[int]


class EvalSegments:
    """Pairs as they are, in order, those of one size that follow each other in one batch.

    Process `rank` of `world_size` takes every world_size-th pair, at most `limit` pairs over all
    processes. Unreadable pairs are left out and counted in `skipped`.
    """

    def __init__(
        self,
        source: SegmentSource,
        *,
        batch_size: int,
        limit: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
        resident: Resident = "auto",
        num_workers: int = 0,
        corrupt_limit: float = 0.001,
    ) -> None:
        check_counts(batch_size=batch_size, num_workers=num_workers)
        check_rank(rank, world_size)
        check_resident(resident)
        if limit is not None:
            check_counts(limit=limit)
        self._source = source
        self._device = as_device(device)
        self._batch_size, self._num_workers = batch_size, num_workers
        self._indices = np.arange(rank, min(len(source), limit or len(source)), world_size)
        self._tally = CorruptTally(source, corrupt_limit, "left out")
        sizes = some_sizes(source)
        self._kept: _Kept | None = None
        if _may_stay(resident, sizes, len(self._indices), self._device):
            self._kept = _keep(source, self._indices, sizes, self._device, resident)
            if self._kept is not None:
                self._tally.add(self._kept.unreadable)

    @property
    def skipped(self) -> int:
        return len(self._tally)

    def __iter__(self) -> Iterator[SegmentBatch]:
        return self._resident_batches(self._kept) if self._kept else self._streamed_batches()

    def _resident_batches(self, kept: _Kept) -> Iterator[SegmentBatch]:
        broken = set(kept.unreadable)
        rows = [row for row, index in enumerate(self._indices.tolist()) if index not in broken]
        for start in range(0, len(rows), self._batch_size):
            part = rows[start : start + self._batch_size]
            index = torch.tensor(part, device=self._device)
            images = kept.images[index].float().div_(255)
            yield SegmentBatch(images, kept.masks[index], self._indices[part].tolist())

    def _streamed_batches(self) -> Iterator[SegmentBatch]:
        samples = _PlainPairs(self._source)
        places = ([index] for index in self._indices.tolist())
        waiting: list[_Sample] = []
        for batch in _loaded(samples, places, self._device, self._num_workers):
            for sample in batch:
                self._tally.add(sample.unreadable)
                if sample.image is None:
                    continue
                if waiting and (len(waiting) == self._batch_size or waiting[0].size != sample.size):
                    yield self._stacked(waiting)
                    waiting = []
                waiting.append(sample)
        if waiting:
            yield self._stacked(waiting)

    def _stacked(self, samples: list[_Sample]) -> SegmentBatch:
        images = torch.stack([sample.image for sample in samples])  # type: ignore[misc]
        masks = torch.stack([sample.mask for sample in samples])  # type: ignore[misc]
        return SegmentBatch(
            images.to(self._device).float().div_(255),
            masks.to(self._device),
            [sample.number for sample in samples],
        )


class _Sample(NamedTuple):
    """A pair from a worker, or why there is none."""

    number: int
    image: Tensor | None = None
    mask: Tensor | None = None
    size: tuple[int, int] = (0, 0)
    unreadable: tuple[int, ...] = ()
    problem: str = ""


class _AugmentedPairs(Dataset[_Sample]):
    """Samples by (index, epoch, step, position): the same whichever worker makes them."""

    def __init__(
        self,
        source: SegmentSource,
        augment: SegmentAugment,
        scale: Scale,
        crop: int,
        seed: int,
        batch_size: int,
        attempts: int,
    ) -> None:
        self._source, self._augment, self._scale, self._crop = source, augment, scale, crop
        self._seed, self._batch_size, self._attempts = seed, batch_size, attempts

    def __getitem__(self, place: tuple[int, int, int, int]) -> _Sample:
        index, epoch, step, position = place
        try:
            pair, index, unreadable = first_readable(self._source, index, self._attempts)
        except InputError as error:  # told in the process that listens
            return _Sample(index, problem=str(error))
        if pair is None:
            return _Sample(index, unreadable=tuple(unreadable))
        rng = numbers(self._seed, Purpose.CROP, epoch, step)
        drawn = uniform_numbers(rng, self._batch_size)[position : position + 1]
        image, mask = one_pair(pixels(pair.image), pair.mask)
        stored = np.array([mask.shape[-2:]])
        choices = choose(drawn, stored, self._augment, self._scale, self._crop)
        levels, labels = augmented(image, mask, choices, self._crop, self._augment.max_category)
        height, width = choices.size[0].tolist()
        return _Sample(index, levels[0], labels[0], (height, width), tuple(unreadable))


class _PlainPairs(Dataset[_Sample]):
    """Samples by index, as they are."""

    def __init__(self, source: SegmentSource) -> None:
        self._source = source

    def __getitem__(self, index: int) -> _Sample:
        try:
            pair, _, unreadable = first_readable(self._source, index, attempts=1)
        except InputError as error:
            return _Sample(index, problem=str(error))
        if pair is None:
            return _Sample(index, unreadable=tuple(unreadable))
        image, mask = one_pair(pixels(pair.image), pair.mask)
        return _Sample(index, image[0], mask[0], (mask.shape[-2], mask.shape[-1]))


def _loaded(
    samples: Dataset[_Sample],
    places: Iterable[list[Any]],
    device: torch.device,
    num_workers: int,
) -> Iterator[list[_Sample]]:
    loader = DataLoader(
        samples,
        batch_sampler=places,
        num_workers=num_workers,
        collate_fn=list,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),  # or it would draw from the caller's global one
    )
    for batch in loader:
        for sample in batch:
            if sample.problem:
                raise InputError(sample.problem)
        yield batch


class _Kept(NamedTuple):
    """A set on the device."""

    images: Tensor  # uint8 (N, 3, H, W)
    masks: Tensor  # uint8 (N, H, W)
    unreadable: list[int]
    readable: np.ndarray  # for each row itself or the next readable one


def _may_stay(
    resident: Resident, sizes: set[tuple[int, int]], count: int, device: torch.device
) -> bool:
    if resident != "auto":
        return resident
    return len(sizes) == 1 and all(
        fits_in_memory(4 * count * height * width, device) for height, width in sizes
    )


def _keep(
    source: SegmentSource,
    indices: np.ndarray,
    sizes: set[tuple[int, int]],
    device: torch.device,
    resident: Resident,
) -> _Kept | None:
    """The pairs on the device; None if they turn out to differ in size."""
    height, width = max(sizes) if sizes else (1, 1)
    images = torch.zeros(len(indices), 3, height, width, dtype=torch.uint8, device=device)
    masks = torch.full((len(indices), height, width), IGNORED, dtype=torch.uint8, device=device)
    unreadable: list[int] = []

    def load(index: int) -> tuple[np.ndarray, np.ndarray] | None:
        try:
            pair = source.decode(index)
        except UnreadableImage:
            unreadable.append(index)
            return None
        return pixels(pair.image), pair.mask

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        for start in range(0, len(indices), CHUNK):
            part = indices[start : start + CHUNK].tolist()
            for row, found in enumerate(pool.map(load, part), start):
                if found is None:
                    continue
                image, mask = found
                if mask.shape != (height, width):
                    if resident is True:
                        raise InputError(
                            f"resident needs pairs of one size; {source.name(int(indices[row]))} "
                            f"is {mask.shape[1]} x {mask.shape[0]}, others {width} x {height}; "
                            "set resident to 'auto'"
                        )
                    return None
                images[row] = torch.from_numpy(image)
                masks[row] = torch.from_numpy(mask)
    rows = np.arange(len(indices))
    whole = rows[~np.isin(indices, unreadable)]
    readable = whole[np.searchsorted(whole, rows) % len(whole)] if len(whole) else rows
    return _Kept(images, masks, sorted(unreadable), readable)


def some_sizes(source: SegmentSource) -> set[tuple[int, int]]:
    """Heights and widths of a few pairs, evenly spread."""
    sizes = set()
    for index in np.linspace(0, len(source) - 1, min(PROBES, len(source))).astype(int).tolist():
        try:
            width, height = source.decode(index).image.size
        except UnreadableImage:
            continue
        sizes.add((height, width))
    return sizes


def _check_crop(
    crop: int, scale: Scale, augment: SegmentAugment, sizes: set[tuple[int, int]]
) -> None:
    resized = [rescaled(h, w, scale, augment.ratio[1]) for h, w in sizes]
    if resized and all(max(size) < crop for size in resized):
        height, width = max(resized, key=max)
        raise InputError(
            f"a crop of {crop} pixels is larger than any image: at the largest ratio "
            f"{augment.ratio[1]:g} they are {width} x {height}; choose a smaller data.image_size "
            "or a larger segmentation.scale"
        )
