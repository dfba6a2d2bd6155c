"""Reading images for training, in one process: JPEG files and a cache of them, beside others' ways.

Decode, crop, flip, and in a second table RandAugment, to float batches of 224 pixels; timm's
loader normalises too, which our models do. What streams a set that does not fit on the device.
Rates are per second of CPU time, which is what a core gives whatever else runs; waiting for a disk
does not count.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timm.data import ImageDataset, create_loader, create_transform

from pidformer.bench.timing import BenchSetting, Case, Timing, Workload, measure
from pidformer.data import Augment, TrainImages, open_images
from pidformer.data.cache import cache_images
from pidformer.errors import InputError

READING = "reading JPEGs, per second of CPU time"
PLAIN, TIMM = "Pillow and timm, plain loop", "timm's loader"
FILES, CACHE = "pidformer, files", "pidformer, cache"
RAND_AUGMENT = "rand-m9-mstd0.5-inc1"
IMAGE, SHORT_SIDE, BATCH, CLASSES = 224, 256, 128, 4


def reading(
    setting: BenchSetting, work: Path, *, count: int, photos: Path | None = None
) -> Iterator[list[Timing]]:
    """Both tables, of `count` images: the training set in the folders `photos`, or made up."""
    if photos is None:
        photos = work / "photos"
        _write_photos(photos, count, setting.seed)
    files = sorted(path for path in (photos / "train").rglob("*") if path.is_file())
    if len(files) < count:
        raise InputError(f"{photos / 'train'} holds {len(files)} files; {count} are to be read")
    cache = work / "cache"
    cache_images(photos, cache, size=SHORT_SIDE)
    for rand_augment in (None, RAND_AUGMENT):
        group = Workload(
            section="train",
            what=READING + (", RandAugment" if rand_augment else ""),
            sizes={"image": IMAGE, "images": count},
            dtype="uint8",
            mode="",
            unit="images/s",
            amount=count,
            clock=time.process_time,
        )
        ours = partial(_ours, count=count, rand_augment=rand_augment, seed=setting.seed)
        cases = [
            Case(
                label=PLAIN,
                make=partial(_plain, files[:: len(files) // count][:count], rand_augment),
            ),
            Case(label=TIMM, make=partial(_timm, photos / "train", count, rand_augment)),
            Case(label=FILES, make=partial(ours, photos)),
            Case(label=CACHE, make=partial(ours, cache)),
        ]
        yield measure(group, cases, setting)


def _plain(files: list[Path], rand_augment: str | None) -> Callable[[], object]:
    steps = create_transform(
        IMAGE,
        is_training=True,
        color_jitter=None,
        auto_augment=rand_augment,
        interpolation="bicubic",
    ).transforms[: 3 if rand_augment else 2]

    def run() -> None:
        for start in range(0, len(files), BATCH):
            read = []
            for path in files[start : start + BATCH]:
                image = Image.open(path).convert("RGB")
                for step in steps:
                    image = step(image)
                read.append(torch.from_numpy(np.array(image)).permute(2, 0, 1))
            torch.stack(read).float().div_(255)

    return run


def _timm(folder: Path, count: int, rand_augment: str | None) -> Callable[[], object]:
    loader = create_loader(
        ImageDataset(str(folder)),
        input_size=(3, IMAGE, IMAGE),
        batch_size=min(BATCH, count),
        is_training=True,
        use_prefetcher=False,
        color_jitter=None,
        auto_augment=rand_augment,
        interpolation="bicubic",
        num_workers=0,
        persistent_workers=False,
    )
    return partial(_take, lambda: iter(loader), count)


def _ours(data: Path, *, count: int, rand_augment: str | None, seed: int) -> Callable[[], object]:
    images = TrainImages(
        open_images(data, "train"),
        image_size=IMAGE,
        batch_size=min(BATCH, count),
        augment=Augment(rand_augment=rand_augment),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        seed=seed,
        resident=False,
    )
    return partial(_take, lambda: images.epoch(0), count)


def _take(epoch: Callable[[], Iterator[object]], count: int) -> None:
    batches = epoch()
    for _ in range(count // min(BATCH, count)):
        next(batches)


def _write_photos(folder: Path, count: int, seed: int) -> None:
    """Made-up JPEGs of 500 x 375 in class folders."""
    for number, data in enumerate(encoded(count, (500, 375), seed)):
        for split in ("train", "val") if number < CLASSES else ("train",):
            place = folder / split / f"class-{number % CLASSES}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{number}.jpg").write_bytes(data)


def encoded(count: int, size: tuple[int, int], seed: int) -> list[bytes]:
    """JPEGs with the detail of photographs, roughly: smooth colours and a little noise."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC))
        noisy = smooth + rng.normal(0, 8, smooth.shape)
        file = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        found.append(file.getvalue())
    return found
