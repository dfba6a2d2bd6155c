"""Image sets that were decoded once (`pidformer data cache`): uint8 pixels in Arrow shards.

CACHE/pidformer-cache.json says what the cache is to hold, and is written first:
CACHE/train-00000-of-00313.arrow and so on are written whole, so a cache that was not finished
lacks files. A picture whose short side is above the cache's is shrunk to it, all others are kept
pixel by pixel.
"""

import math
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from pidformer.data.formats import plans
from pidformer.data.formats.arrow import SUFFIX, ArrowRows
from pidformer.data.formats.shards import check_labels
from pidformer.data.pictures import UnreadableImage
from pidformer.data.sources import TRAIN, find_split
from pidformer.errors import InputError, some
from pidformer.files import check_inside

FILE = "pidformer-cache.json"
MOST_SHARDS = 99_999
SCHEMA = pa.schema(
    {
        "pixels": pa.binary(),  # (height, width, channels); null for an unreadable picture
        "height": pa.int32(),
        "width": pa.int32(),
        "is_shrunk": pa.bool_(),
        "label": pa.int64(),
        "name": pa.binary(),  # as files are called, which need not be text
    }
)


@dataclass(frozen=True, kw_only=True)
class CachedSplit:
    images: int
    shards: int
    channels: int
    classes: tuple[str, ...]
    fingerprint: str
    """A hash of the names and labels of the set's images."""

    def __post_init__(self) -> None:
        if not (0 < self.shards <= MOST_SHARDS and self.channels in (1, 3)):
            raise InputError(
                f"{self.shards} shards of {self.channels} channels; allowed are 1 to {MOST_SHARDS} "
                "shards of 1 or 3 channels"
            )

    def files(self, folder: Path, split: str) -> list[Path]:
        return [
            folder / f"{split}-{number:05d}-of-{self.shards:05d}{SUFFIX}"
            for number in range(self.shards)
        ]


@dataclass(frozen=True, kw_only=True)
class CachePlan(plans.FolderPlan):
    """The content of pidformer-cache.json."""

    short_side: int
    splits: dict[str, CachedSplit]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.splits:
            raise InputError("it is a cache with 0 splits")


class CachedImages:
    def __init__(self, folder: Path, split: str, plan: CachePlan) -> None:
        planned = plan.splits[split]
        self.classes, self.channels = planned.classes, planned.channels
        self.files = planned.files(folder, split)
        self._rows = rows = ArrowRows(self.files, tuple(SCHEMA.names))
        if len(rows) != planned.images:
            raise InputError(
                f"the {split} shards of {folder} hold {len(rows)} images, not the "
                f"{planned.images} of {FILE}; make the cache again"
            )
        self.labels = rows.labels()
        check_labels(folder / split, self.labels, self.classes)
        shrunk = (column for file in rows.chunks("is_shrunk").values() for column in file.chunks)
        self.shrunk = sum(column.true_count for column in shrunk)
        self.unreadable = sum(file.null_count for file in rows.chunks("pixels").values())
        self.size = plan.short_side
        self.short_side = self.size if self.shrunk else None

    def __len__(self) -> int:
        return len(self._rows)

    def name(self, index: int) -> str:
        return os.fsdecode(self._rows.cell(index, "name").as_py() or b"")

    def decode(self, index: int) -> Image.Image:
        data = self._rows.cell(index, "pixels").as_buffer()
        if data is None:
            raise UnreadableImage("it could not be read when the cache was made")
        shape = [self._rows.cell(index, side).as_py() or 0 for side in ("height", "width")]
        shape += [3] if self.channels == 3 else []
        if min(shape) < 1 or math.prod(shape) != data.size:
            raise UnreadableImage(f"{data.size} bytes are no picture of {shape}")
        return Image.fromarray(np.frombuffer(data, dtype=np.uint8).reshape(shape))


def read_plan(folder: Path) -> CachePlan:
    plan = plans.read_plan(CachePlan, folder / FILE, "cache")
    for name in plan.splits:
        check_inside(folder / f"{name}{SUFFIX}", folder)
    return plan


def cached_splits(folder: Path) -> list[str]:
    if not (folder / FILE).is_file():
        return []
    try:
        return list(read_plan(folder).splits)
    except InputError:  # opening it says why
        return [TRAIN]


def open_cached(folder: Path, split: str) -> CachedImages:
    plan = read_plan(folder)
    name = find_split(split, plan.splits, f"the cache {folder}")
    files = plan.splits[name].files(folder, name)
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise InputError(
            f"the cache {folder} is not complete: {len(missing)} of {len(files)} {name} shards are "
            f"missing ({some(missing, 1)}); run the `pidformer data cache` that makes it again"
        )
    return CachedImages(folder, name, plan)


def cache_notes(folder: Path) -> tuple[str, ...]:
    """What a fixed size costs, for those who check a cache."""
    notes = []
    for split in cached_splits(folder):
        with suppress(InputError):
            notes.append(fidelity(split, open_cached(folder, split)))
    return tuple(notes)


def fidelity(split: str, source: CachedImages) -> str:
    if not source.shrunk:
        return f"{split}: a cache of all pixels (no image was above a short side of {source.size})"
    return (
        f"{split}: a cache, {source.shrunk:,} of {len(source):,} images shrunk to a short side of "
        f"{source.size}: evaluation that resizes to {source.size} is exact, random crops see less "
        "detail than in the files"
    )
