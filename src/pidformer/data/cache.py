"""Decode an image set once, to uint8 shards that every command reads in place of the set."""

import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pidformer.data.arguments import check_counts
from pidformer.data.formats import plans
from pidformer.data.formats.arrow import read_table
from pidformer.data.formats.cached import (
    FILE,
    SCHEMA,
    CachedImages,
    CachedSplit,
    CachePlan,
    open_cached,
)
from pidformer.data.formats.table import image_folder, image_format
from pidformer.data.pictures import UnreadableImage, shrink
from pidformer.data.sources import ImageSource, evenly
from pidformer.data.storage import PROBES
from pidformer.devices import usable_cores
from pidformer.display import advancing
from pidformer.errors import InputError
from pidformer.files import atomic_path, out_folder

SHARD = 4096
"""Images of a shard: what a killed command does again."""
BATCH = 64
"""Images of a record batch: what is held in memory while it is written."""


def cache_images(
    location: str | Path, out: str | Path, *, size: int = 256, is_shown: bool = False
) -> dict[str, CachedImages]:
    """Write every split of the image set at `location` to the folder `out`; the cached splits.

    Pictures with a short side above `size` are shrunk to it, bicubic, by the rule of evaluation;
    all others keep their pixels. Order, labels, names and unreadable images stay those of the set,
    so a batch has the same images from either. A shard that is there is not made again: the same
    call goes on where it was stopped.
    """
    check_counts(size=size)
    folder = image_folder(location)
    if folder is None or (folder / FILE).exists():
        what = "the digits need no cache" if folder is None else f"{folder} is a cache itself"
        raise InputError(f"{what}; give the folder of an image set")
    known = image_format(folder)
    sources: dict[str, ImageSource] = {}
    for split in known.splits(folder):
        sources[split] = known.open(folder, split if "/" not in split else "train")
    plan = CachePlan(
        short_side=size, splits={split: _planned(source) for split, source in sources.items()}
    )
    out = out_folder(out)
    _check_room(sources, plan, out)  # first: a plan that is written holds its --out to one --size
    _begin(plan, out)
    for split, source in sources.items():
        _write_split(source, split, plan, out, is_shown=is_shown)
    return {split: open_cached(out, split) for split in sources}


def _planned(source: ImageSource) -> CachedSplit:
    try:
        "".join(source.classes).encode()
    except UnicodeEncodeError:
        raise InputError("names of classes that are not UTF-8 cannot be cached; rename") from None
    digest = hashlib.sha256(source.labels.numpy().tobytes())
    for index in range(len(source)):
        digest.update(os.fsencode(source.name(index)) + b"\0")
    return CachedSplit(
        images=len(source),
        shards=-(-len(source) // SHARD),
        channels=source.channels,
        classes=source.classes,
        fingerprint=digest.hexdigest(),
    )


def _begin(plan: CachePlan, out: Path) -> None:
    """Write the plan; of a cache that was begun, check that it has the same."""
    begun = plans.begin(plan, out / FILE, "cache")
    if begun.short_side != plan.short_side:
        raise InputError(
            f"{out} is a cache of size {begun.short_side}, not {plan.short_side}; give "
            f"--size {begun.short_side} to finish it, or another --out"
        )
    if begun != plan:
        raise InputError(
            f"{out} is a cache of another set, or of this one before it changed (other images, "
            "labels or splits); choose another --out"
        )


def _check_room(sources: dict[str, ImageSource], plan: CachePlan, out: Path) -> None:
    """Refuse what a few images say will not fit on the disk."""
    needed = 0.0
    for split, source in sources.items():
        missing = sum(not path.is_file() for path in plan.splits[split].files(out, split))
        rows = [_row(source, plan.short_side, index) for index in evenly(len(source), PROBES)]
        each = np.mean([row["height"] * row["width"] * source.channels for row in rows])
        needed += missing / plan.splits[split].shards * len(source) * float(each)
    free = shutil.disk_usage(out).free
    if needed > free:
        raise InputError(
            f"the cache needs about {needed / 1e9:.1f} GB in {out}, where {free / 1e9:.1f} GB are "
            "free; choose another --out or a smaller --size"
        )


def _write_split(
    source: ImageSource, split: str, plan: CachePlan, out: Path, *, is_shown: bool
) -> None:
    row = partial(_row, source, plan.short_side)
    with (
        advancing(f"caching {split}", len(source), is_shown=is_shown) as advance,
        ThreadPoolExecutor(min(16, usable_cores())) as pool,
    ):
        for number, path in enumerate(plan.splits[split].files(out, split)):
            indices = range(len(source))[number * SHARD : (number + 1) * SHARD]
            if _is_whole(path, len(indices)):
                advance(len(indices))
                continue
            with atomic_path(path) as temporary, pa.ipc.new_file(str(temporary), SCHEMA) as writer:
                for start in range(0, len(indices), BATCH):
                    rows = list(pool.map(row, indices[start : start + BATCH]))
                    writer.write_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
                    advance(len(rows))


def _is_whole(path: Path, count: int) -> bool:
    if not path.is_file():
        return False
    try:
        return read_table(path, tuple(SCHEMA.names)).num_rows == count
    except InputError:  # cut short: it is made again
        return False


def _row(source: ImageSource, size: int, index: int) -> dict[str, Any]:
    row = {
        "pixels": None,
        "height": 0,
        "width": 0,
        "is_shrunk": False,
        "label": int(source.labels[index]),
        "name": os.fsencode(source.name(index)),
    }
    try:
        whole = source.decode(index)
    except UnreadableImage:
        return row
    image = shrink(whole, size)
    shape = {"height": image.height, "width": image.width, "is_shrunk": image is not whole}
    return row | shape | {"pixels": image.tobytes()}
