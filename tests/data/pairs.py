"""Small segmentation sets for the tests."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from pidformer.data.pictures import UnreadableImage
from pidformer.data.segmentation import Pair
from pidformer.data.segmentation.augment import ATTEMPTS, Choices


@dataclass
class MemoryPairs:
    """Pairs in memory, some of them broken."""

    pairs: list[tuple[np.ndarray, np.ndarray]]
    classes: tuple[str, ...] = ("red", "green", "blue", "grey")
    broken: frozenset[int] = frozenset()
    palette: np.ndarray = field(default_factory=lambda: np.eye(4, 3, dtype=np.uint8) * 255)

    def __len__(self) -> int:
        return len(self.pairs)

    def name(self, index: int) -> str:
        return f"pair-{index}"

    def decode(self, index: int) -> Pair:
        if index in self.broken:
            raise UnreadableImage("broken")
        image, mask = self.pairs[index]
        return Pair(Image.fromarray(image), mask)


def random_pairs(
    count: int = 11,
    sizes: tuple[tuple[int, int], ...] = ((24, 32),),
    classes: int = 4,
    seed: int = 0,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Blocks of classes, whose colours tell them apart, with noise and some unlabelled pixels."""
    rng = np.random.default_rng(seed)
    pairs = []
    for number in range(count):
        height, width = sizes[number % len(sizes)]
        coarse = rng.integers(classes, size=(height // 4 + 1, width // 4 + 1))
        mask = coarse.repeat(4, 0).repeat(4, 1)[:height, :width].astype(np.uint8)
        colours = np.array([[200, 40, 40], [40, 200, 40], [40, 40, 200], [120, 120, 120]])
        noise = rng.integers(-30, 30, size=(height, width, 3))
        image = (colours[mask] + noise).clip(0, 255).astype(np.uint8)
        mask[rng.random(mask.shape) < 0.05] = 255
        pairs.append((image, mask))
    return pairs


def memory_pairs(count: int = 11, broken: tuple = (), **options) -> MemoryPairs:
    return MemoryPairs(random_pairs(count, **options), broken=frozenset(broken))


def encode(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def write_ade(root: Path, train: int = 4, val: int = 2, classes: int = 4, **options) -> Path:
    """ADE20K's tree: labels from 1, 0 for unlabelled pixels."""
    root = root / "ADEChallengeData2016"
    for split, count in (("training", train), ("validation", val)):
        for kind in ("images", "annotations"):
            (root / kind / split).mkdir(parents=True, exist_ok=True)
        for number, (image, mask) in enumerate(random_pairs(count, classes=classes, **options)):
            stored = np.where(mask == 255, 0, mask + 1).astype(np.uint8)
            name = f"ADE_{split}_{number:08d}"
            Image.fromarray(image).save(
                root / "images" / split / f"{name}.jpg", quality=100, subsampling=0
            )
            Image.fromarray(stored).save(root / "annotations" / split / f"{name}.png")
    return root


def write_parquet(
    root: Path, train: int = 16, val: int = 6, plain: bool = False, **options
) -> Path:
    """CamVid's form: columns image and mask, labels from 0, 255 for unlabelled pixels."""
    root.mkdir(parents=True, exist_ok=True)
    names = ["red", "green", "blue", "grey"]
    (root / "classes.json").write_text(json.dumps({"classes": names, "ignore_index": 255}))
    for seed, (split, count) in enumerate((("train", train), ("val", val))):
        rows = [
            (encode(image), encode(mask))
            for image, mask in random_pairs(count, seed=seed, **options)
        ]
        columns = {
            name: [
                cell if plain else {"bytes": cell, "path": f"{i}.png"}
                for i, cell in enumerate(cells)
            ]
            for name, cells in zip(("image", "mask"), zip(*rows, strict=True), strict=True)
        }
        pq.write_table(pa.table(columns), root / f"{split}.parquet", row_group_size=5)
    return root


def write_cityscapes(root: Path) -> tuple[Path, np.ndarray]:
    """One image of a city in each split; returns the stored labelIds too."""
    rng = np.random.default_rng(0)
    stored = rng.integers(34, size=(8, 12)).astype(np.uint8)
    for split in ("train", "val"):
        for kind, ending, array in (
            ("leftImg8bit", "leftImg8bit", rng.integers(255, size=(8, 12, 3)).astype(np.uint8)),
            ("gtFine", "gtFine_labelIds", stored),
        ):
            folder = root / kind / split / "bern"
            folder.mkdir(parents=True)
            Image.fromarray(array).save(folder / f"bern_000000_000019_{ending}.png")
    return root, stored


def choices(count: int, size, corner=(0, 0), flip=False, **colour) -> Choices:
    """Choices that are all alike."""
    corners = np.tile(np.array(corner), (count, ATTEMPTS + 1, 1))
    fields = {
        "brightness": 0.0,
        "early_contrast": 1.0,
        "late_contrast": 1.0,
        "saturation": np.nan,
        "hue": 0,
    } | colour
    arrays = {
        name: np.full(count, value, dtype=np.int64 if name == "hue" else np.float32)
        for name, value in fields.items()
    }
    return Choices(
        size=np.tile(np.array(size), (count, 1)),
        corners=corners,
        is_flipped=np.full(count, flip),
        **arrays,
    )
