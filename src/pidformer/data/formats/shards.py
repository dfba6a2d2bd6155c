"""What sets in a few large files share: the shards of a split, labels, names of classes."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from pidformer.data.sources import TRAIN, VALIDATION, stored_names
from pidformer.errors import InputError, some

MAX_CLASSES = 1_000_000
_SHARD = re.compile(r"(?P<name>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.(parquet|arrow)")


def split_files(folder: Path, split: str, suffix: str) -> list[Path]:
    """The file or the shards that hold a split: train.SUFFIX, train-00000-of-00002.SUFFIX."""
    for name in stored_names(split):
        for place in (folder, folder / "data"):
            whole = place / f"{name}{suffix}"
            if whole.is_file():
                return [whole]
            if found := shards(place, name, suffix):
                return found
    held = some(sorted({path.name for path in set_files(folder, suffix)}))
    raise InputError(
        f"no split {split!r} in {folder}; it holds {held}; "
        f"expected {split}{suffix} or {split}-00000-of-0000N{suffix}"
    )


def set_files(folder: Path, suffix: str) -> list[Path]:
    """All files of a kind in a folder, and in its `data`."""
    return [
        path for place in (folder, folder / "data") for path in sorted(place.glob(f"*{suffix}"))
    ]


def split_names(files: Iterable[Path]) -> list[str]:
    """The names of all files, those of the shards of a split taken as one."""
    found = {path: _SHARD.fullmatch(path.name) for path in files}
    return in_order({match["name"] if match else path.stem for path, match in found.items()})


def in_order(splits: Iterable[str]) -> list[str]:
    """Training first, then what validates, then the others."""
    return sorted(splits, key=lambda name: (name != TRAIN, name not in VALIDATION, name))


def shards(place: Path, name: str, suffix: str) -> list[Path]:
    """NAME-00000-of-0000N.SUFFIX in a folder, all of them or none."""
    found = {path: _SHARD.fullmatch(path.name) for path in sorted(place.glob(f"{name}-*{suffix}"))}
    parts = {path: match for path, match in found.items() if match and match["name"] == name}
    counts = {int(match["count"]) for match in parts.values()}
    if parts and counts != {len(parts)}:
        wanted = " or ".join(str(count) for count in sorted(counts))
        raise InputError(
            f"{place} holds {len(parts)} {name} shards of {wanted}; "
            "download the missing ones, or remove those of another version"
        )
    return list(parts)


def joined_labels(columns: Mapping[Path, pa.ChunkedArray]) -> torch.Tensor:
    """The labels of all files, int64 (N,); each row must have one."""
    for path, column in columns.items():
        if column.null_count or not pa.types.is_integer(column.type):
            raise InputError(
                f"column label of {path} must hold an integer in every row, "
                f"got {column.type} with {column.null_count} empty"
            )
    labels = [column.to_numpy().astype(np.int64) for column in columns.values()]
    joined = torch.from_numpy(np.concatenate(labels))
    if not len(joined):
        raise InputError(f"{next(iter(columns))} has no rows; an image set needs at least one")
    return joined


def check_labels(what: object, labels: torch.Tensor, classes: tuple[str, ...]) -> None:
    """Refuse labels beyond the classes; `what` holds them."""
    low, high = int(labels.min()), int(labels.max())
    if low < -1 or high >= len(classes):
        raise InputError(
            f"labels of {what} run from {low} to {high}, but the set has {len(classes)} classes; "
            f"allowed are 0 to {len(classes) - 1}, -1 for none"
        )


def class_names(metadata: Mapping[bytes, bytes] | None) -> tuple[str, ...]:
    """Names in a schema's `huggingface` metadata; none when it holds none."""
    try:
        info: Any = json.loads((metadata or {})[b"huggingface"])
        return tuple(map(str, info["info"]["features"]["label"]["names"]))
    except (KeyError, TypeError, ValueError):
        return ()


def classes_of_others(
    folder: Path, largest: int, look: Callable[[str], tuple[tuple[str, ...], Callable[[], int]]]
) -> tuple[str, ...]:
    """The names that train or val have, else numbers, as many as the splits need together.

    `look` gives a split's names and a way to its largest label. A split that cannot be read has no
    say here: opening it tells why.
    """
    for split in (TRAIN, "val"):
        with suppress(InputError):
            names, largest_there = look(split)
            if names:
                return names
            largest = max(largest, largest_there())
    if largest >= MAX_CLASSES:
        raise InputError(
            f"labels in {folder} run to {largest}; without names of classes they must be below "
            f"{MAX_CLASSES}: number the classes 0, 1, 2, ..."
        )
    return tuple(str(number) for number in range(largest + 1))
