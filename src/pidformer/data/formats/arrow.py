"""Image sets as Arrow files, as Hugging Face `datasets` saves them; memory-mapped."""

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from PIL import Image

from pidformer.data.formats.shards import (
    check_labels,
    class_names,
    classes_of_others,
    in_order,
    joined_labels,
    set_files,
    shards,
    split_files,
    split_names,
)
from pidformer.data.pictures import UnreadableImage, read_picture
from pidformer.data.sources import TRAIN, stored_names
from pidformer.errors import InputError, cut

SUFFIX = ".arrow"
_SAVED = "data"
"""`Dataset.save_to_disk` calls its shards data-00000-of-0000N.arrow, whatever the split."""
_FILE, _END_OF_STREAM = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"


class ArrowRows:
    """Rows of record batches that stay on disk: the system reads the pages that are looked at."""

    def __init__(self, files: list[Path], columns: tuple[str, ...]) -> None:
        self.files = files
        self._columns = columns
        self._open_files()

    def _open_files(self) -> None:
        """Map all files; each process does it for itself."""
        self._parts = [read_batches(path, self._columns) for path in self.files]
        self._batches = [batch for part in self._parts for batch in part]
        self._starts = [0, *accumulate(batch.num_rows for batch in self._batches)]
        in_files = (sum(batch.num_rows for batch in part) for part in self._parts)
        self._firsts = [0, *accumulate(in_files)]

    def __len__(self) -> int:
        return self._starts[-1]

    def name(self, index: int) -> str:
        number = bisect_right(self._firsts, index) - 1
        return f"{self.files[number].name} row {index - self._firsts[number]}"

    def cell(self, index: int, column: str) -> Any:
        """One cell, a value of Arrow's."""
        place = bisect_right(self._starts, index) - 1
        return self._batches[place].column(column)[index - self._starts[place]]

    def columns(self, name: str) -> dict[Path, pa.ChunkedArray]:
        """A column of every file."""
        return {
            path: pa.chunked_array([batch.column(name) for batch in part], self._type(name))
            for path, part in zip(self.files, self._parts, strict=True)
        }

    def _type(self, name: str) -> pa.DataType | None:
        return self._batches[0].schema.field(name).type if self._batches else pa.int64()

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_parts", "_batches")
        return {key: value for key, value in self.__dict__.items() if key not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open_files()


class ArrowImages(ArrowRows):
    """Rows of `image` (encoded: struct{bytes, path} or plain bytes) and `label`."""

    channels = 3
    classes: tuple[str, ...] = ()

    def __init__(self, files: list[Path]) -> None:
        super().__init__(files, ("image", "label"))
        self.labels: torch.Tensor = joined_labels(self.columns("label"))

    @property
    def class_names(self) -> tuple[str, ...]:
        """Those that the first file names."""
        return class_names(self._batches[0].schema.metadata)

    def decode(self, index: int) -> Image.Image:
        cell = self.cell(index, "image").as_py()
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        if not isinstance(data, bytes):
            raise UnreadableImage("the row has no image bytes")
        return read_picture(data)


def read_batches(path: Path, needed: tuple[str, ...]) -> list[pa.RecordBatch]:
    """The record batches of an Arrow file or stream, mapped, their inner places checked."""
    try:
        # Held by the batches, which live as long as their source.
        mapped = pa.memory_map(str(path))
        if mapped.read(len(_FILE)) == _FILE:
            reader = pa.ipc.open_file(mapped)
            batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        else:
            mapped.seek(max(0, mapped.size() - len(_END_OF_STREAM)))
            is_whole = mapped.read() == _END_OF_STREAM
            mapped.seek(0)
            reader = pa.ipc.open_stream(mapped)
            batches = list(reader)
            if not is_whole:
                raise pa.ArrowInvalid("it ends before its end mark")
        columns = reader.schema.names
        for column in needed:
            if column not in columns:
                raise InputError(
                    f"{path} has no column {column!r}, only {cut(', '.join(columns))}; "
                    f"it needs {', '.join(needed)}"
                )
        chosen = [batch.select(list(needed)) for batch in batches]
        for batch in chosen:
            batch.validate(full=True)  # or a damaged offset reads beyond the file
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"cannot read {path} as Arrow ({cut(error)}); is it cut short? copy or make it again"
        ) from None
    return chosen


def arrow_splits(folder: Path) -> list[str]:
    """train.arrow, or the folders that a saved `DatasetDict` has; a saved `Dataset` is "train"."""
    named = set(split_names(set_files(folder, SUFFIX)))
    if named == {_SAVED}:
        named = {TRAIN}
    inner = folder.iterdir() if folder.is_dir() else ()
    saved = {place.name for place in inner if any(place.glob(f"{_SAVED}-*-of-*{SUFFIX}"))}
    return in_order(named | saved)


def open_arrow(folder: Path, split: str) -> ArrowImages:
    """The split's shards; class names from their schema, else from train's or val's."""
    source = ArrowImages(_files(folder, split))

    def look(other: str) -> tuple[tuple[str, ...], Callable[[], int]]:
        found = ArrowImages(_files(folder, other))
        return found.class_names, lambda: int(found.labels.max())

    largest = int(source.labels.max())
    source.classes = source.class_names or classes_of_others(folder, largest, look)
    check_labels(source.files[0], source.labels, source.classes)
    return source


def _files(folder: Path, split: str) -> list[Path]:
    for name in stored_names(split):
        if found := shards(folder / name, _SAVED, SUFFIX):
            return found
    saved = shards(folder, _SAVED, SUFFIX)
    if saved and split == TRAIN:
        return saved
    if saved:
        raise InputError(
            f"no split {split!r} in {folder}, a single Dataset; save a DatasetDict with a train "
            "and a test split (Dataset.train_test_split makes one)"
        )
    return split_files(folder, split, SUFFIX)
