"""Image sets as Arrow files, as Hugging Face `datasets` saves them; memory-mapped."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from pidformer.data.formats.shards import (
    LABELLED,
    RowImages,
    Rows,
    check_columns,
    in_order,
    open_labelled,
    set_files,
    shards,
    split_files,
    split_names,
)
from pidformer.data.sources import TRAIN, stored_names
from pidformer.errors import InputError, cut

SUFFIX = ".arrow"
_SAVED = "data"
"""`Dataset.save_to_disk` calls its shards data-00000-of-0000N.arrow, whatever the split."""
_FILE, _END_OF_STREAM = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"


class ArrowRows(Rows):
    """Rows of tables that stay on disk: the system reads the pages that are looked at."""

    def _open(self, path: Path) -> pa.Table:
        return read_table(path, self.columns)

    def _cell(self, number: int, row: int, column: str) -> Any:
        return self._opened[number].column(column)[row]


def read_table(path: Path, needed: tuple[str, ...]) -> pa.Table:
    """These columns of an Arrow file or stream, mapped, their inner places checked."""
    try:
        mapped = pa.memory_map(str(path))  # held by the table, which lives as long as its source
        if mapped.read(len(_FILE)) == _FILE:
            table = pa.ipc.open_file(mapped).read_all()
        else:
            mapped.seek(max(0, mapped.size() - len(_END_OF_STREAM)))
            is_whole = mapped.read() == _END_OF_STREAM
            mapped.seek(0)
            table = pa.ipc.open_stream(mapped).read_all()
            if not is_whole:
                raise pa.ArrowInvalid("it ends before its end mark")
        check_columns(path, table.column_names, needed)
        table = table.select(list(needed))
        table.validate(full=True)  # or a damaged offset reads beyond the file
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"cannot read {path} as Arrow ({cut(error)}); is it cut short? copy or make it again"
        ) from None
    return table


def arrow_splits(folder: Path) -> list[str]:
    """train.arrow, or the folders that a saved `DatasetDict` has; a saved `Dataset` is "train"."""
    named = set(split_names(set_files(folder, SUFFIX)))
    if named == {_SAVED}:
        named = {TRAIN}
    inner = folder.iterdir() if folder.is_dir() else ()
    saved = {place.name for place in inner if any(place.glob(f"{_SAVED}-*-of-*{SUFFIX}"))}
    return in_order(named | saved)


def open_arrow(folder: Path, split: str) -> RowImages:
    return open_labelled(folder, split, lambda name: ArrowRows(_files(folder, name), LABELLED))


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
