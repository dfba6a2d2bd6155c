"""Sets of images, and of images with masks, as Parquet files in the Hugging Face convention."""

import json
import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from pidformer.data.formats.masks import Legend, label_table, labelled_pair, read_legend
from pidformer.data.pictures import UnreadableImage, read_picture
from pidformer.data.sources import TRAIN, VALIDATION, Pair, stored_names
from pidformer.errors import InputError

CACHE_BYTES = 2**30  # encoded images kept in memory, per process
MAX_CLASSES = 1_000_000
LABELLED = ("image", "label")
MASKED = ("image", "mask")
_SHARD = re.compile(r"(?P<name>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.parquet")


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
    """The names of all files, those of the shards of a split taken as one."""
    found = {path: _SHARD.fullmatch(path.name) for path in _files(folder)}
    names = {match["name"] if match else path.stem for path, match in found.items()}
    return sorted(names, key=lambda name: (name != TRAIN, name not in VALIDATION, name))


def masked_splits(folder: Path) -> list[str]:
    """The same where rows have masks, as the first file that can be read tells."""
    columns: list[str] = []
    for path in _files(folder):
        with suppress(pa.ArrowException, OSError):
            columns = pq.read_schema(path).names
            break
    is_masked = "mask" in columns or (not columns and (folder / "classes.json").exists())
    return parquet_splits(folder) if is_masked else []


def open_masked(folder: Path, split: str) -> ParquetPairs:
    """The split's file or shards, with the classes in classes.json beside them."""
    files = _split_files(folder, split)
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
    files = _split_files(folder, split)
    labels = _read_labels(files)
    classes = _class_names(files[0])
    if not classes:
        classes = _classes_of_others(folder, int(labels.max()))
    if int(labels.min()) < -1 or int(labels.max()) >= len(classes):
        raise InputError(
            f"labels of {files[0]} run from {int(labels.min())} to {int(labels.max())}, but the "
            f"set has {len(classes)} classes; allowed are 0 to {len(classes) - 1}, -1 for none"
        )
    return ParquetImages(files, classes, labels)


def _classes_of_others(folder: Path, largest: int) -> tuple[str, ...]:
    """The names that train or val have, else numbers, as many as the splits need together.

    A split that cannot be read has no say here: opening it tells why.
    """
    for split in (TRAIN, "val"):
        with suppress(InputError):
            files = _split_files(folder, split)
            if names := _class_names(files[0]):
                return names
            largest = max(largest, int(_read_labels(files).max()))
    if largest >= MAX_CLASSES:
        raise InputError(
            f"labels in {folder} run to {largest}; without names of classes they must be below "
            f"{MAX_CLASSES}: number the classes 0, 1, 2, ..."
        )
    return tuple(str(number) for number in range(largest + 1))


def _files(folder: Path) -> list[Path]:
    return [path for place in (folder, folder / "data") for path in sorted(place.glob("*.parquet"))]


def _split_files(folder: Path, split: str) -> list[Path]:
    """The file or the shards that hold a split."""
    for name in stored_names(split):
        for place in (folder, folder / "data"):
            whole = place / f"{name}.parquet"
            if whole.is_file():
                return [whole]
            if shards := _shards(place, name):
                return shards
    held = sorted({path.name for path in _files(folder)})
    raise InputError(
        f"no split {split!r} in {folder}; it holds {', '.join(held)}; "
        f"expected {split}.parquet or {split}-00000-of-0000N.parquet"
    )


def _shards(place: Path, name: str) -> list[Path]:
    found = {path: _SHARD.fullmatch(path.name) for path in sorted(place.glob(f"{name}-*.parquet"))}
    shards = {path: match for path, match in found.items() if match and match["name"] == name}
    counts = {int(match["count"]) for match in shards.values()}
    if shards and counts != {len(shards)}:
        wanted = " or ".join(str(count) for count in sorted(counts))
        raise InputError(
            f"{place} holds {len(shards)} {name} shards of {wanted}; "
            "download the missing ones, or remove those of another version"
        )
    return list(shards)


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
    columns = [_open_file(path).read(columns=["label"])["label"] for path in files]
    for path, column in zip(files, columns, strict=True):
        if column.null_count or not pa.types.is_integer(column.type):
            raise InputError(
                f"column label of {path} must hold an integer in every row, "
                f"got {column.type} with {column.null_count} empty"
            )
    labels = [torch.from_numpy(column.to_numpy().astype("int64")) for column in columns]
    joined = torch.cat(labels)
    if not len(joined):
        raise InputError(f"{files[0]} has no rows; an image set needs at least one")
    return joined


def _class_names(path: Path) -> tuple[str, ...]:
    """Names in the schema's `huggingface` metadata; none when it holds none."""
    metadata = _open_file(path).schema_arrow.metadata or {}
    try:
        info = json.loads(metadata[b"huggingface"])
        return tuple(map(str, info["info"]["features"]["label"]["names"]))
    except (KeyError, TypeError, ValueError):
        return ()
