"""Image sets that fit: decoded once, kept on the device as uint8, augmented there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from pidformer.data.augment import Augment
from pidformer.data.batchwise import crop_boxes, flip_left_right, padded_crop, resized_crop
from pidformer.data.corrupt import CorruptTally
from pidformer.data.pictures import UnreadableImage, fit, pixels
from pidformer.data.plan import Plan
from pidformer.data.randomness import Purpose, numbers
from pidformer.data.sources import ImageSource

CHUNK = 2048
LONG = 5000  # images that are worth a progress bar


class ResidentBatches:
    """Training batches cut from images on the device, uint8 (B, C, S, S) with labels (B,).

    Random numbers of the whole global batch are drawn on the host for every process, a few dozen
    an image, and each takes its part.
    """

    def __init__(
        self,
        source: ImageSource,
        plan: Plan,
        augment: Augment,
        image_size: int,
        stored: tuple[int, int],
        device: torch.device,
        tally: CorruptTally,
    ) -> None:
        self._plan = plan
        self._augment = augment
        self._size = image_size
        self._device = device
        self._images, unreadable = decode_all(
            source,
            np.arange(len(source)),
            lambda image: fit(image, *stored),
            stored,
            device,
            show_progress=plan.rank == 0,
        )
        tally.add(unreadable)
        self._kept = _next_readable(len(source), unreadable)
        self._labels = source.labels.to(device)

    def batches(self, epoch: int, start_step: int) -> Iterator[tuple[Tensor, Tensor]]:
        local = self._kept[self._plan.order(epoch)[start_step:, self._plan.local]]
        order = torch.from_numpy(local).to(self._device, non_blocking=True)
        for step, index in enumerate(order, start_step):
            rng = numbers(self._plan.seed, Purpose.CROP, epoch, step)
            yield self._augmented(self._images[index], rng), self._labels[index]

    def _augmented(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        augment, count = self._augment, self._plan.batch_size
        flips = rng.random(count) < augment.flip
        if augment.crop == "resized":
            height, width = images.shape[-2:]
            boxes = crop_boxes(rng, count, height, width, augment.scale, augment.ratio)
            images = resized_crop(images, self._local(boxes), self._size)
        elif augment.crop == "padded":
            corners = rng.integers(2 * augment.padding, size=(count, 2), endpoint=True)
            images = padded_crop(images, self._local(corners), augment.padding)
        return flip_left_right(images, self._local(flips)) if augment.flip > 0 else images

    def _local(self, drawn: np.ndarray) -> Tensor:
        return torch.from_numpy(drawn[self._plan.local]).to(self._device, non_blocking=True)


def decode_all(
    source: ImageSource,
    indices: np.ndarray,
    prepare: Callable[[Image.Image], Image.Image],
    size: tuple[int, int],
    device: torch.device,
    *,
    show_progress: bool,
) -> tuple[Tensor, list[int]]:
    """uint8 images (N, C, *size) on `device`, and the indices that could not be read (zeros)."""
    images = torch.zeros(len(indices), source.channels, *size, dtype=torch.uint8, device=device)
    unreadable: list[int] = []

    def load(index: int) -> np.ndarray | None:
        try:
            return pixels(prepare(source.decode(index)))
        except UnreadableImage:
            unreadable.append(index)
            return None

    with (
        _progress(len(indices), show_progress) as advance,
        ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool,
    ):
        for start in range(0, len(indices), CHUNK):
            part = indices[start : start + CHUNK].tolist()
            loaded = dict(enumerate(pool.map(load, part)))
            whole = {row: array for row, array in loaded.items() if array is not None}
            if whole:
                rows = torch.tensor(list(whole), device=device) + start
                images[rows] = torch.from_numpy(np.stack(list(whole.values()))).to(device)
            advance(len(part))
    return images, sorted(unreadable)


@contextmanager
def _progress(total: int, wanted: bool) -> Iterator[Callable[[int], None]]:
    is_shown = wanted and total >= LONG and sys.stderr.isatty()
    with Progress(console=Console(stderr=True), transient=True, disable=not is_shown) as bar:
        task = bar.add_task("decoding images", total=total)
        yield lambda count: bar.advance(task, count)


def _next_readable(count: int, unreadable: list[int]) -> np.ndarray:
    """For each index itself or the next readable one, int64 (count,)."""
    readable = np.setdiff1d(np.arange(count), unreadable)
    return readable[np.searchsorted(readable, np.arange(count)) % len(readable)]
