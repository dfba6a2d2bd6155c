"""Batches of pairs for training and for evaluation: images in [0, 1], labels, 255 = ignore."""
# B pairs, S window

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from pidformer.data import arguments
from pidformer.data.loaders import Batch, Loader, Options, Place, Tensors, TrainLoader, groups
from pidformer.data.pictures import pixels
from pidformer.data.randomness import Purpose, numbers, sampled
from pidformer.data.segmentation.augment import (
    Scale,
    SegmentAugment,
    choose,
    rescaled,
    uniform_numbers,
)
from pidformer.data.segmentation.windows import augmented, is_inside
from pidformer.data.sources import Pair, SegmentSource
from pidformer.data.storage import OtherSize, fits_in_memory, some_sizes
from pidformer.errors import InputError


@dataclass(frozen=True)
class Windows:
    """Random windows: what is drawn depends on (seed, epoch, step, position in the batch) alone."""

    augment: SegmentAugment
    scale: Scale
    crop: int
    seed: int
    batch_size: int

    def of_batch(
        self, images: Tensor, masks: Tensor, epoch: int, step: int, positions: slice
    ) -> Tensors:
        """Levels (B, 3, S, S), labels (B, S, S) and resized sizes (B, 2) of pairs of one size.

        `positions` are those of the pairs in the global batch, which the numbers are drawn for.
        """
        rng = numbers(self.seed, Purpose.CROP, epoch, step)
        drawn = uniform_numbers(rng, self.batch_size)[positions]
        stored = np.array([masks.shape[-2:]] * len(masks))
        choices = choose(drawn, stored, self.augment, self.scale, self.crop)
        levels, labels = augmented(images, masks, choices, self.crop, self.augment.max_category)
        return levels, labels, torch.from_numpy(choices.size)

    def of_pair(self, pair: Pair, index: int, epoch: int, step: int, position: int) -> Tensors:
        image, mask = (tensor[None] for tensor in _plain(pair, index))
        found = self.of_batch(image, mask, epoch, step, slice(position, position + 1))
        return tuple(tensor[0] for tensor in found)

    def check_crop(self, sizes: set[tuple[int, int]]) -> None:
        """Refuse windows that are larger than any pair of these sizes becomes."""
        ratio = self.augment.ratio[1]
        resized = [rescaled(h, w, self.scale, ratio) for h, w in sizes]
        if resized and all(max(size) < self.crop for size in resized):
            height, width = max(resized, key=max)
            raise InputError(
                f"a crop of {self.crop} pixels is larger than any image: at the largest ratio "
                f"{ratio:g} they are {width} x {height}; choose a smaller data.image_size or a "
                "larger segmentation.scale"
            )


class TrainSegments(TrainLoader[Pair]):
    """Augmented, shuffled batches of one process: images (B, 3, S, S), labels int64 (B, S, S).

    As `TrainImages`: `batch_size` is the global batch, and every random number is a function of
    (seed, epoch, step, position in the batch) alone, so that resuming is exact and processes and
    workers change nothing. The last batch of an epoch is filled up with the epoch's first pairs.

    `resident` keeps the decoded pairs on the device and augments there in batches; "auto" does so
    when all have one size and fit (a quarter of the free memory, 8 GiB at most). Otherwise
    `num_workers` processes stream them, through the same operations with the same numbers: the
    batches are the same.

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
        **options: Unpack[Options],
    ) -> None:
        arguments.check_counts(crop=crop)
        arguments.check_colour("mean", mean, 3)
        super().__init__(
            source, noun="pair", batch_size=batch_size, seed=seed, fills_last=True, **options
        )
        self._windows = Windows(augment, scale, crop, seed, batch_size)
        self._mean = torch.tensor(mean, dtype=torch.float32, device=self._device)[:, None, None]
        sizes = some_sizes(source, lambda pair: pair.image)
        self._windows.check_crop(sizes)
        _keep_pairs(self, sizes, options.get("resident", "auto"))

    def _make(self) -> Callable[..., Tensors]:
        return self._windows.of_pair

    def _augmented(self, tensors: Tensors, epoch: int, step: int) -> Tensors:
        images, masks = tensors
        levels, labels, size = self._windows.of_batch(images, masks, epoch, step, self._plan.local)
        return levels, labels, size.to(self._device, non_blocking=True)

    def _finished(self, tensors: Tensors, epoch: int, step: int) -> Batch:
        levels, labels, size = tensors
        inside = is_inside(size, self._windows.crop)[:, None]
        return Batch(torch.where(inside, levels.float() / 255, self._mean), labels.long())


class SegmentBatch(NamedTuple):
    """Pairs of one size: images (B, 3, H, W) in [0, 1], uint8 labels (B, H, W), their indices."""

    images: Tensor
    masks: Tensor
    indices: list[int]


class EvalSegments(Loader[Pair]):
    """Pairs as they are, in order, those of one size that follow each other in one batch.

    Process `rank` of `world_size` takes every world_size-th pair. A `limit` takes so many, drawn
    with `seed`: neighbours may be frames of one video. Unreadable pairs are left out and counted in
    `skipped`.
    """

    def __init__(
        self,
        source: SegmentSource,
        *,
        batch_size: int,
        limit: int | None = None,
        seed: int = 0,
        **options: Unpack[Options],
    ) -> None:
        arguments.check_counts(batch_size=batch_size)
        super().__init__(source, consequence="left out", **options)
        if limit is not None:
            arguments.check_counts(limit=limit)
            chosen = sampled(len(source), limit, seed)
            self._indices = chosen[self._rank :: options.get("world_size", 1)]
        self._batch_size = batch_size
        sizes = some_sizes(source, lambda pair: pair.image)
        _keep_pairs(self, sizes, options.get("resident", "auto"))

    def __iter__(self) -> Iterator[SegmentBatch]:
        found = self._from_device() if self.is_resident else self._from_workers()
        for (images, masks), indices in found:
            yield SegmentBatch(images.float().div_(255), masks, indices)

    def _from_device(self) -> Iterator[tuple[Tensors, list[int]]]:
        for rows in groups(self._readable, self._batch_size):
            yield self._rows(rows), self._indices[rows].tolist()

    def _from_workers(self) -> Iterator[tuple[Tensors, list[int]]]:
        places: Iterator[list[Place]] = ([(index,)] for index in self._indices.tolist())
        waiting: list[Tensors] = []
        indices: list[int] = []
        for loaded in self._stream(_plain, places):  # one at a time: sizes may differ
            is_other = waiting and waiting[0][1].shape != loaded.tensors[1].shape
            if is_other or len(waiting) == self._batch_size:
                yield _joined(waiting), indices
                waiting, indices = [], []
            waiting.append(loaded.tensors)
            indices += loaded.indices
        if waiting:
            yield _joined(waiting), indices


def _joined(parts: list[Tensors]) -> Tensors:
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _plain(pair: Pair, index: int) -> Tensors:
    """Levels uint8 (3, H, W) and labels uint8 (H, W) of a pair."""
    return torch.from_numpy(pixels(pair.image)), torch.from_numpy(pair.mask)


def _keep_pairs(
    loader: Loader[Pair], sizes: set[tuple[int, int]], resident: arguments.Resident
) -> None:
    """Keep the pairs on the device if they may stay there and turn out to be of one size."""
    count, device = len(loader._indices), loader._device
    height, width = max(sizes) if sizes else (1, 1)
    if resident == "auto":
        may_stay = len(sizes) == 1 and fits_in_memory(4 * count * height * width, device)
    else:
        may_stay = resident
    shapes = (3, height, width), (height, width)
    try:
        if may_stay:
            loader._keep(lambda pair: (pixels(pair.image), pair.mask), *shapes)
    except OtherSize as other:
        if resident is True:
            index, h, w = other.args
            raise InputError(
                f"resident needs pairs of one size; {loader._source.name(index)} is {w} x {h}, "
                f"others {width} x {height}; set resident to 'auto'"
            ) from None
