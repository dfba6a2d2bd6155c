"""Image sets as Arrow files, as Hugging Face `datasets` saves them; memory-mapped."""

from pathlib import Path

import pyarrow as pa

from pidformer.data.formats import shards
from pidformer.data.sources import TRAIN, in_order
from pidformer.errors import InputError, cut

SUFFIX = ".arrow"
_SAVED = "data"
"""`Dataset.save_to_disk` calls its shards data-00000-of-0000N.arrow, whatever the split."""
_FILE, _END_OF_STREAM = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"


def read_table(path: Path, columns: tuple[str, ...]) -> pa.Table:
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
        shards.check_columns(path, table.column_names, columns)
        table = table.select(list(columns))
        table.validate(full=True)  # or a damaged offset reads beyond the file
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"cannot read {path} as Arrow ({cut(error)}); is it cut short? copy or make it again"
        ) from None
    return table


class ArrowRows(shards.Rows):
    """Rows of tables that stay on disk: the system reads the pages that are looked at."""

    _open = staticmethod(read_table)


def arrow_splits(folder: Path) -> list[str]:
    return in_order(_files(folder))


def open_arrow(folder: Path, split: str) -> shards.RowImages:
    found = _files(folder)
    hint = (
        f"expected {split}{SUFFIX}, or save a DatasetDict with a train and a test split "
        "(Dataset.train_test_split makes one)"
    )

    def rows(name: str) -> ArrowRows:
        return ArrowRows(shards.split_files(folder, found, name, hint), shards.LABELLED)

    return shards.open_labelled(folder, split, rows)


def _files(folder: Path) -> dict[str, list[Path]]:
    """train.arrow, or the folders that a saved `DatasetDict` has; a saved `Dataset` is "train"."""
    found = shards.files_by_split(folder, SUFFIX)
    if _SAVED in found:
        found[TRAIN] = found.pop(_SAVED)
    saved: dict[str, list[Path]] = {}
    for path in sorted(folder.glob(f"*/{_SAVED}-*-of-*{SUFFIX}")):
        saved.setdefault(path.parent.name, []).append(path)
    return found | saved
