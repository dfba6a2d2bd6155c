"""Files in the layouts and sizes of the paper's sets, for a rehearsal without them."""

import io
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from pidformer.data.imagenet import imagenet_classes


class Published(NamedTuple):
    """How much a published set has: images, or tokens."""

    train: int
    val: int
    test: int = 0


PUBLISHED = {
    "imagenet": Published(1_281_167, 50_000),
    "ade20k": Published(20_210, 2_000),
    "wikitext-103": Published(103_227_021, 217_646, 245_569),
    "imagenet-a": Published(0, 7_500),
    "imagenet-r": Published(0, 30_000),
    "imagenet-o": Published(0, 2_000 + 10_000),  # and the images of its classes in ImageNet
    "imagenet-c": Published(0, 50_000),  # each corruption and severity
    "ood": Published(0, 0),  # ImageNet has no such split
}
WORDS = 267_735
"""Words of WikiText-103's vocabulary."""
_PICTURES = 32


def make_sets(root: Path, steps: int = 64) -> None:
    """`root/imagenet`, `root/ADEChallengeData2016` and `root/wikitext-103`.

    An epoch of images has `steps` steps of the paper's batches: more than a rehearsal takes, since
    worker processes restart at each epoch.
    """
    _imagenet(root / "imagenet", -(-1024 * steps // 1000))
    _ade20k(root / "ADEChallengeData2016", max(_PICTURES, 8 * steps), min(40, 7 + steps))
    _wikitext(root / "wikitext-103")


def _imagenet(root: Path, per_class: int) -> None:
    """All classes: some images each to train on, one to validate; few different ones."""
    pictures = [_photograph(500, 375, seed) for seed in range(_PICTURES)]
    first: dict[int, Path] = {}
    for split, each in (("train", per_class), ("val", 1)):
        for number, name in enumerate(imagenet_classes()):
            folder = root / split / name
            folder.mkdir(parents=True)
            for copy in range(each):
                _place(folder / f"{copy}.JPEG", (each * number + copy) % _PICTURES, first, pictures)


def _ade20k(root: Path, pairs: int, scenes: int) -> None:
    rng = np.random.default_rng(0)
    pictures = [_photograph(683, 512, seed) for seed in range(_PICTURES)]
    images: dict[int, Path] = {}
    masks: dict[int, Path] = {}
    drawn = []
    for _ in pictures:
        labels = Image.fromarray(rng.integers(151, size=(8, 8), dtype=np.uint8))
        buffer = io.BytesIO()
        labels.resize((683, 512), Image.Resampling.NEAREST).save(buffer, "PNG")
        drawn.append(buffer.getvalue())
    for split, count in (("training", pairs), ("validation", scenes)):
        for kind in ("images", "annotations"):
            (root / kind / split).mkdir(parents=True)
        for number in range(count):
            name = f"ADE_{split}_{number:08d}"
            place = number % _PICTURES
            _place(root / "images" / split / f"{name}.jpg", place, images, pictures)
            _place(root / "annotations" / split / f"{name}.png", place, masks, drawn)


def _wikitext(root: Path) -> None:
    """Every word of the vocabulary once, the frequent ones over and over."""
    root.mkdir(parents=True)
    words = [f"w{number}" for number in range(WORDS - 2)]  # beside <unk> and <eos>
    rng = np.random.default_rng(0)
    often = [words[n] for n in rng.zipf(1.3, 200_000) % len(words)]
    for split, text in (
        ("train", words + often),
        ("valid", often[:20_000]),
        ("test", often[:20_000]),
    ):
        lines = (" ".join(text[k : k + 40]) for k in range(0, len(text), 40))
        path = root / f"wiki.{split}.tokens"
        path.write_text("".join(f" {line} \n" for line in lines))


def _photograph(width: int, height: int, seed: int) -> bytes:
    """Something of all frequencies, as large as a photograph of this size (about 110 kB)."""
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width, 3))
    for side in (4, 16, 64):
        coarse = Image.fromarray(rng.integers(256, size=(side, side, 3), dtype=np.uint8))
        total += np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=float)
    noisy = total / 3 + rng.normal(0, 12, total.shape)
    buffer = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def _place(path: Path, number: int, first: dict[int, Path], pictures: list[bytes]) -> None:
    """A picture, written once and linked further on, where the disk knows links."""
    if number not in first:
        path.write_bytes(pictures[number])
        first[number] = path
        return
    try:
        os.link(first[number], path)
    except OSError:
        shutil.copyfile(first[number], path)
