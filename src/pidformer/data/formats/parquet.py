"""Sets of images, and of images with masks, as Parquet files in the Hugging Face convention."""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from pidformer.data.formats.masks import Legend, label_table, labelled_pair, read_legend
from pidformer.data.formats.shards import (
    check_labels,
    class_names,
    classes_of_others,
    joined_labels,
    set_files,
    split_files,
    split_names,
)
from pidformer.data.pictures import UnreadableImage, read_picture
from pidformer.data.sources import Pair
from pidformer.errors import InputError

CACHE_BYTES = 2**30  # encoded images kept in memory, per process
SUFFIX = ".parquet"
LABELLED = ("image", "label")
MASKED = ("image", "mask")


class ParquetRows:
    """Rows of columns of encoded images: struct{bytes, path} or plain bytes.

    Files are memory-mapped and read a row group at a time; row groups stay in memory up to
    `CACHE_BYTES`. A set with more encoded bytes than that is slow to read in random order: unpack
    it to folders, or let the loaders keep it resident.
    """

    def __init__(self, files: list[Path], columns: tuple[str, ...]) -> None:
        self.files = files
        self._columns = columns
        self._groups: list[tuple[int, int, int]] = []  # file, row group in it, the file's first row
        self._starts: list[int] = []  # first row of each group
        self._open_files()
        self._count = 0
        for number, file in enumerate(self._opened):
            first = self._count
            for group in range(file.num_row_groups):
                self._groups.append((number, group, first))
                self._starts.append(self._count)
                self._count += file.metadata.row_group(group).num_rows

    def __len__(self) -> int:
        return self._count

    def name(self, index: int) -> str:
        number, _, first = self._groups[bisect_right(self._starts, index) - 1]
        return f"{self.files[number].name} row {index - first}"

    def cell(self, index: int, column: str) -> bytes:
        """The bytes of one cell."""
        place = bisect_right(self._starts, index) - 1
        cell = self._rows(place, column)[index - self._starts[place]].as_py()
        data = cell["bytes"] if isinstance(cell, dict) else cell
        if data is None:
            raise UnreadableImage(f"the row has no {column} bytes")
        return bytes(data)

    def _open_files(self) -> None:
        self._opened = [_open_file(path, self._columns) for path in self.files]
        self._cache: OrderedDict[tuple[int, str], pa.ChunkedArray] = OrderedDict()
        self._lock = threading.Lock()  # the loaders decode in threads

    def _rows(self, place: int, column: str) -> Any:
        with self._lock:
            if (place, column) in self._cache:
                self._cache.move_to_end((place, column))
                return self._cache[place, column]
            number, group, _ = self._groups[place]
            file = self._opened[number]
            is_struct = pa.types.is_struct(file.schema_arrow.field(column).type)
            columns = [f"{column}.bytes" if is_struct else column]
            try:
                rows = file.read_row_group(group, columns=columns, use_threads=False)[column]
            except (pa.ArrowException, OSError) as error:
                reason = str(error).splitlines()[0]
                raise InputError(
                    f"cannot read row group {group} of {self.files[number]}: {reason}; "
                    "download the file again"
                ) from None
            self._cache[place, column] = rows
            held = self._cache
            while len(held) > 1 and sum(r.nbytes for r in held.values()) > CACHE_BYTES:
                held.popitem(last=False)
            return rows

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_opened", "_cache", "_lock")  # each process maps the files for itself
        return {key: value for key, value in self.__dict__.items() if key not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open_files()


class ParquetImages(ParquetRows):
    """Rows of `image` and `label` = int64."""

    channels = 3

    def __init__(self, files: list[Path], classes: tuple[str, ...], labels: torch.Tensor) -> None:
        super().__init__(files, LABELLED)
        self.classes = classes
        self.labels = labels

    def decode(self, index: int) -> Image.Image:
        return read_picture(self.cell(index, "image"))


class ParquetPairs(ParquetRows):
    """Rows of `image` and `mask`; labels from 0."""

    def __init__(self, files: list[Path], legend: Legend) -> None:
        super().__init__(files, MASKED)
        self.classes, self.palette = legend
        self._table = label_table(range(len(legend.classes)), ignored=())

    def decode(self, index: int) -> Pair:
        image, mask = (self.cell(index, column) for column in MASKED)
        name = self.name(index)
        return labelled_pair(image, mask, self._table, name, name)


def parquet_splits(folder: Path) -> list[str]:
    return split_names(set_files(folder, SUFFIX))


def masked_splits(folder: Path) -> list[str]:
    """The same where rows have masks, as the first file that can be read tells."""
    columns: list[str] = []
    for path in set_files(folder, SUFFIX):
        with suppress(pa.ArrowException, OSError):
            columns = pq.read_schema(path).names
            break
    is_masked = "mask" in columns or (not columns and (folder / "classes.json").exists())
    return parquet_splits(folder) if is_masked else []


def open_masked(folder: Path, split: str) -> ParquetPairs:
    """The split's file or shards, with the classes in classes.json beside them."""
    files = split_files(folder, split, SUFFIX)
    path = folder / "classes.json"
    if not path.exists():
        raise InputError(
            f'no classes.json in {folder}; write {{"classes": [names in the order of the labels]}}'
        )
    rows = ParquetPairs(files, read_legend(path))
    if not len(rows):
        raise InputError(f"{files[0]} has no rows; a segmentation set needs at least one")
    return rows


def open_parquet(folder: Path, split: str) -> ParquetImages:
    """The split's file or shards; class names from its schema, else from train's or val's."""
    files = split_files(folder, split, SUFFIX)
    labels = _read_labels(files)

    def look(other: str) -> tuple[tuple[str, ...], Callable[[], int]]:
        found = split_files(folder, other, SUFFIX)
        return _class_names(found[0]), lambda: int(_read_labels(found).max())

    classes = _class_names(files[0]) or classes_of_others(folder, int(labels.max()), look)
    check_labels(files[0], labels, classes)
    return ParquetImages(files, classes, labels)


def _open_file(path: Path, needed: tuple[str, ...] = LABELLED) -> Any:
    try:
        file = pq.ParquetFile(path, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"cannot read {path} as Parquet: {reason}") from None
    columns = file.schema_arrow.names
    for column in needed:
        if column not in columns:
            what = "image classification" if needed == LABELLED else "segmentation"
            raise InputError(
                f"{path} has no column {column!r}, only {', '.join(columns)}; "
                f"{what} needs `image` (struct of bytes and path) and `{needed[-1]}`"
            )
    return file


def _read_labels(files: list[Path]) -> torch.Tensor:
    return joined_labels(
        {path: _open_file(path).read(columns=["label"])["label"] for path in files}
    )


def _class_names(path: Path) -> tuple[str, ...]:
    return class_names(_open_file(path).schema_arrow.metadata)
