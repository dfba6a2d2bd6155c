from __future__ import annotations

import pickle
import struct
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pidformer.data import open_images
from pidformer.data.check import check_data
from pidformer.data.pictures import read_picture
from tests.data.sets import pictured, refused_images, write_arrow, write_parquet

LABELS = {"train": [1, 0, 1, 1, 0], "test": [0, 1, 0]}


@pytest.fixture
def saved(tmp_path):
    return write_arrow(tmp_path / "saved", LABELS, names=["cat", "dog"])


def test_a_saved_dataset_dict_is_read_in_order(saved):
    source = open_images(saved, "train")
    assert source.classes == ("cat", "dog") and source.labels.tolist() == LABELS["train"]
    for index in range(5):
        assert source.decode(index).tobytes() == read_picture(pictured(index)).tobytes()
    assert source.name(4) == "data-00001-of-00002.arrow row 2"
    assert open_images(saved, "val").labels.tolist() == LABELS["test"]


def test_a_single_saved_dataset_is_a_training_set(saved):
    assert len(open_images(saved / "train", "train")) == 5
    assert "save a DatasetDict" in refused_images(saved / "train", "val")


def test_plain_arrow_files_are_read_and_numbered_over_splits(tmp_path):
    for split, labels in (("train", [0, 1]), ("val", [0, 3])):
        write_parquet(tmp_path / f"{split}.parquet", labels)
        table = pq.read_table(tmp_path / f"{split}.parquet")
        (tmp_path / f"{split}.parquet").unlink()
        with pa.ipc.new_file(tmp_path / f"{split}.arrow", table.schema) as writer:
            writer.write_table(table)
    assert open_images(tmp_path, "train").classes == ("0", "1", "2", "3")
    assert open_images(tmp_path, "val").decode(1).getpixel((0, 0))[0] == 20


def test_an_arrow_source_can_be_sent_to_another_process(saved):
    source = open_images(saved, "train")
    copy = pickle.loads(pickle.dumps(source))
    assert copy.decode(2).tobytes() == source.decode(2).tobytes()


def test_bad_arrow_is_one_line(saved):
    path = saved / "train" / "data-00001-of-00002.arrow"
    raw = path.read_bytes()
    for length in (0, 7, 200, len(raw) // 2, len(raw) - 8):  # the last: at the end of a batch
        path.write_bytes(raw[:length])
        assert "is it cut short?" in refused_images(saved), length
    path.unlink()
    assert "1 data shards of 2" in refused_images(saved)
    write_parquet(path, [0, 5])
    assert "as Arrow" in refused_images(saved)
    table = pa.table({"picture": [b""], "label": [0]})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    assert "has no column 'image', only picture, label" in refused_images(saved)
    table = pa.table({"image": [b"", b""], "label": [0, 7]})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    assert "run from 0 to 7, but the set has 2 classes" in refused_images(saved)


def test_damaged_offsets_are_refused_not_followed(saved):
    """An offset beyond the buffer made Arrow read memory that is not the file's."""
    path = saved / "train" / "data-00000-of-00002.arrow"
    table = pa.table({"image": [b"abc", b"def"], "label": [0, 1]})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    raw, offsets = path.read_bytes(), struct.pack("<iii", 0, 3, 6)
    assert raw.count(offsets) == 1
    path.write_bytes(raw.replace(offsets, struct.pack("<iii", 0, 2**31 - 1, 6)))
    assert "as Arrow" in refused_images(saved)


def test_a_row_without_a_picture_is_damage(saved):
    path = saved / "test" / "data-00000-of-00002.arrow"
    table = pa.table({"image": [b"no picture", None], "label": [0, 1]})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    (_, test) = check_data(saved, sample=None).splits
    assert [name.partition(":")[0] for name in test.damaged] == [
        "data-00000-of-00002.arrow row 0",
        "data-00000-of-00002.arrow row 1",
    ]


def test_neither_datasets_nor_webdataset_is_imported():
    code = (
        "import sys, pidformer.data.cache, pidformer.data.formats.table; "
        "print({'datasets', 'webdataset'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
