"""Sets of images, and of images with masks, as Parquet files in the Hugging Face convention."""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pidformer.data.formats import shards
from pidformer.data.formats.masks import Legend, label_table, labelled_pair, read_legend
from pidformer.data.sources import Pair, in_order
from pidformer.errors import InputError, cut

CACHE_BYTES = 2**30  # encoded images kept in memory, per process
SUFFIX = ".parquet"
MASKED = ("image", "mask")


class GroupedFile:
    """A Parquet file, mapped, whose row groups are read one at a time."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        with _undamaged(f"{path} as Parquet"):
            self._file = pq.ParquetFile(path, memory_map=True)
        self._path, self.schema = path, self._file.schema_arrow
        shards.check_columns(path, self.schema.names, columns)
        groups = map(self._file.metadata.row_group, range(self._file.num_row_groups))
        self.starts = [0, *accumulate(group.num_rows for group in groups)]
        self.num_rows = self.starts[-1]

    def column(self, name: str) -> pa.ChunkedArray:
        with _undamaged(f"column {name} of {self._path}"):
            return self._file.read(columns=[name])[name]

    def pictures(self, group: int, column: str) -> pa.ChunkedArray:
        is_struct = pa.types.is_struct(self.schema.field(column).type)
        columns = [f"{column}.bytes" if is_struct else column]
        with _undamaged(f"row group {group} of {self._path}"):
            return self._file.read_row_group(group, columns=columns, use_threads=False)[column]


@contextmanager
def _undamaged(what: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"cannot read {what} ({cut(error)}); download the file again") from None


class ParquetRows(shards.Rows):
    """Rows of columns of encoded pictures, of which row groups stay in memory up to `CACHE_BYTES`.

    A set with more encoded bytes than that is slow to read in random order: unpack it to folders,
    or let the loaders keep it resident.
    """

    _open = GroupedFile

    def __init__(self, files: list[Path], columns: tuple[str, ...]) -> None:
        super().__init__(files, columns)
        self._cache: OrderedDict[tuple[int, int, str], pa.ChunkedArray] = OrderedDict()
        self._lock = threading.Lock()  # the loaders decode in threads

    def _cell(self, number: int, row: int, column: str) -> Any:
        file, held = self._opened[number], self._cache
        group = bisect_right(file.starts, row) - 1
        key = number, group, column
        with self._lock:
            if key in held:
                held.move_to_end(key)
            else:
                held[key] = file.pictures(group, column)
                while len(held) > 1 and sum(rows.nbytes for rows in held.values()) > CACHE_BYTES:
                    held.popitem(last=False)
            return held[key][row - file.starts[group]]


class ParquetPairs:
    """Rows of `image` and `mask`; labels from 0."""

    def __init__(self, rows: ParquetRows, legend: Legend) -> None:
        self.rows, (self.classes, self.palette) = rows, legend
        self._table = label_table(range(len(legend.classes)), ignored=())

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        return self.rows.name(index)

    def decode(self, index: int) -> Pair:
        image, mask = (self.rows.encoded(index, column) for column in MASKED)
        name = self.name(index)
        return labelled_pair(image, mask, self._table, name, name)


def parquet_splits(folder: Path) -> list[str]:
    return in_order(shards.files_by_split(folder, SUFFIX))


def masked_splits(folder: Path) -> list[str]:
    """The same where rows have masks, as the first file that can be read tells."""
    columns: list[str] = []
    found = shards.files_by_split(folder, SUFFIX)
    for path in chain.from_iterable(found.values()):
        with suppress(pa.ArrowException, OSError):
            columns = pq.read_schema(path).names
            break
    is_masked = "mask" in columns or (not columns and (folder / "classes.json").exists())
    return in_order(found) if is_masked else []


def open_masked(folder: Path, split: str) -> ParquetPairs:
    """The split's file or shards, with the classes in classes.json beside them."""
    path = folder / "classes.json"
    if not path.exists():
        raise InputError(
            f'no classes.json in {folder}; write {{"classes": [names in the order of the labels]}}'
        )
    rows, legend = _rows(folder, split, MASKED), read_legend(path)
    if not len(rows):
        raise InputError(f"{rows.files[0]} has no rows; a segmentation set needs at least one")
    return ParquetPairs(rows, legend)


def open_parquet(folder: Path, split: str) -> shards.RowImages:
    return shards.open_labelled(folder, split, lambda name: _rows(folder, name, shards.LABELLED))


def _rows(folder: Path, split: str, columns: tuple[str, ...]) -> ParquetRows:
    hint = f"expected {split}{SUFFIX} or {split}-00000-of-0000N{SUFFIX}"
    found = shards.files_by_split(folder, SUFFIX)
    return ParquetRows(shards.split_files(folder, found, split, hint), columns)
