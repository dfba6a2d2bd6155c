"""What sets in a few large files share: shards of a split, rows, labels, names of classes."""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image

from pidformer.data.pictures import UnreadableImage, read_picture
from pidformer.data.sources import TRAIN, find_split
from pidformer.errors import InputError, cut

MAX_CLASSES = 1_000_000
LABELLED = ("image", "label")
_SHARD = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(-[0-9a-f]{16})?")
"""As Hugging Face's hub names them; years ago with a hash behind."""


def files_by_split(folder: Path, suffix: str) -> dict[str, list[Path]]:
    """train.SUFFIX or train-00000-of-00002.SUFFIX and so on, in a folder or else in its `data`."""
    found: dict[str, list[Path]] = {}
    for place in (folder / "data", folder):
        held: dict[str, list[Path]] = {}
        for path in sorted(place.glob(f"[!.]*{suffix}")):
            held.setdefault(_split_of(path), []).append(path)
        found |= held
    return found


def _split_of(path: Path) -> str:
    match = _SHARD.fullmatch(path.stem)
    return match["name"] if match else path.stem


def split_files(folder: Path, found: Mapping[str, list[Path]], split: str, hint: str) -> list[Path]:
    """The file of a split, or its shards; none may be missing."""
    paths = found[find_split(split, found, folder, hint=f"; {hint}")]
    shards = [_SHARD.fullmatch(path.stem) for path in paths]
    if whole := [path for path, shard in zip(paths, shards, strict=True) if not shard]:
        return whole
    numbered = {(int(shard["number"]), int(shard["count"])) for shard in shards if shard}
    if numbered != {(number, len(paths)) for number in range(len(paths))}:
        wanted = " or ".join(str(count) for count in sorted({count for _, count in numbered}))
        raise InputError(
            f"{paths[0].parent} holds {len(paths)} {_split_of(paths[0])} shards of {wanted}; "
            "download the missing ones, or remove those of another version"
        )
    return paths


class Rows:
    """Rows of Arrow's columns over several files; a process that is handed them opens them anew."""

    def __init__(self, files: list[Path], columns: tuple[str, ...]) -> None:
        self.files, self.columns = files, columns
        self._opened = [self._open(path, columns) for path in files]
        self._firsts = [0, *accumulate(file.num_rows for file in self._opened)]

    @staticmethod
    def _open(path: Path, columns: tuple[str, ...]) -> Any:
        """A file, with `num_rows`, `schema` and `column(name)`."""
        raise NotImplementedError

    def _cell(self, number: int, row: int, column: str) -> Any:
        return self._opened[number].column(column)[row]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.files, self.columns)

    def __len__(self) -> int:
        return self._firsts[-1]

    def _place(self, index: int) -> tuple[int, int]:
        """The number of the file that holds a row, and the row's number in it."""
        number = bisect_right(self._firsts, index) - 1
        return number, index - self._firsts[number]

    def name(self, index: int) -> str:
        number, row = self._place(index)
        return f"{self.files[number].name} row {row}"

    def cell(self, index: int, column: str) -> Any:
        return self._cell(*self._place(index), column)

    def encoded(self, index: int, column: str) -> bytes:
        """The picture in a cell: struct{bytes, path} or plain bytes."""
        cell = self.cell(index, column).as_py()
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        if not isinstance(data, bytes):
            raise UnreadableImage(f"the row has no {column} bytes")
        return data

    def chunks(self, column: str) -> dict[Path, pa.ChunkedArray]:
        opened = zip(self.files, self._opened, strict=True)
        return {path: file.column(column) for path, file in opened}

    @property
    def class_names(self) -> tuple[str, ...]:
        """Those in the `huggingface` metadata of the first file; none when it holds none."""
        try:
            info: Any = json.loads((self._opened[0].schema.metadata or {})[b"huggingface"])
            return tuple(map(str, info["info"]["features"]["label"]["names"]))
        except (KeyError, TypeError, ValueError):
            return ()

    def labels(self) -> torch.Tensor:
        """The labels of all files, int64 (N,); each row must have one."""
        columns = self.chunks("label")
        for path, column in columns.items():
            if column.null_count or not pa.types.is_integer(column.type):
                raise InputError(
                    f"column label of {path} must hold an integer in every row, "
                    f"got {column.type} with {column.null_count} empty"
                )
        if not len(self):
            raise InputError(f"{self.files[0]} has no rows; an image set needs at least one")
        labels = [column.to_numpy().astype(np.int64) for column in columns.values()]
        return torch.from_numpy(np.concatenate(labels))


class RowImages:
    channels = 3

    def __init__(self, rows: Rows, labels: torch.Tensor, classes: tuple[str, ...]) -> None:
        self.rows, self.labels, self.classes = rows, labels, classes

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        return self.rows.name(index)

    def decode(self, index: int) -> Image.Image:
        return read_picture(self.rows.encoded(index, "image"))


def open_labelled(folder: Path, split: str, open_rows: Callable[[str], Rows]) -> RowImages:
    """A split's rows; class names from their schema, else from train's or val's."""
    rows = open_rows(split)
    labels = rows.labels()

    def look(other: str) -> tuple[str, ...] | int:
        found = open_rows(other)
        return found.class_names or int(found.labels().max())

    classes = rows.class_names or classes_of_others(folder, int(labels.max()), look)
    check_labels(rows.files[0], labels, classes)
    return RowImages(rows, labels, classes)


def check_columns(path: Path, held: Sequence[str], needed: Sequence[str]) -> None:
    for column in needed:
        if column not in held:
            wanted = ", ".join(needed).replace("image", "image (a struct of bytes and path)")
            raise InputError(
                f"{path} has no column {column!r}, only {cut(', '.join(held))}; it needs {wanted}"
            )


def check_labels(
    what: object, labels: torch.Tensor, classes: tuple[str, ...], *, may_lack: bool = True
) -> None:
    """Refuse labels of `what` beyond the classes, and -1 where every image must have one."""
    low, high = int(labels.min()), int(labels.max())
    if low < -may_lack or high >= len(classes):
        raise InputError(
            f"labels of {what} run from {low} to {high}, but the set has {len(classes)} classes; "
            f"allowed are 0 to {len(classes) - 1}{', -1 for none' if may_lack else ''}"
        )


def classes_of_others(
    folder: Path, largest: int, look: Callable[[str], tuple[str, ...] | int]
) -> tuple[str, ...]:
    """The names that train or val have, else numbers, as many as the splits need together.

    `look` gives a split's names, or where it has none its largest label. A split that cannot be
    read has no say here: opening it tells why.
    """
    for split in (TRAIN, "val"):
        with suppress(InputError):
            found = look(split)
            if isinstance(found, tuple):
                return found
            largest = max(largest, found)
    if largest >= MAX_CLASSES:
        raise InputError(
            f"labels in {folder} run to {largest}; without names of classes they must be below "
            f"{MAX_CLASSES}: number the classes 0, 1, 2, ..."
        )
    return tuple(str(number) for number in range(largest + 1))
