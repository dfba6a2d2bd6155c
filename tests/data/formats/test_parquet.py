from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pidformer.data import EvalImages, open_images
from pidformer.data.segmentation import open_segmentation
from pidformer.data.views import relabel, sample
from pidformer.errors import InputError
from tests.data import pairs
from tests.data.sets import refused_images, write_parquet

CAMVID = Path(__file__).parents[4] / "shared" / "data" / "camvid"


@pytest.fixture(scope="module")
def tiny_imagenet() -> Path:
    folder = os.environ.get("PIDFORMER_DATA")
    if folder is None or not (Path(folder) / "tiny-imagenet-100").is_dir():
        pytest.skip("set PIDFORMER_DATA to the folder that holds tiny-imagenet-100")
    return Path(folder) / "tiny-imagenet-100"


def test_parquet_rows_names_and_pictures(tmp_path):
    write_parquet(tmp_path / "train.parquet", [1, 0, 1, 1, 0], names=["cat", "dog"])
    source = open_images(tmp_path, "train")
    assert source.classes == ("cat", "dog") and source.labels.tolist() == [1, 0, 1, 1, 0]
    assert [source.decode(i).getpixel((0, 0))[0] for i in range(5)] == [0, 20, 40, 60, 80]
    assert source.name(3) == "train.parquet row 3"


def test_labels_without_names_that_are_no_classes(tmp_path):
    """As many names as the largest label were made: for hours, or until memory ended."""
    write_parquet(tmp_path / "train.parquet", [0, 10**12])
    with pytest.raises(InputError, match=r"labels in .* run to 1000000000000"):
        open_images(tmp_path, "train")


def test_parquet_shards_are_one_set(tmp_path):
    write_parquet(tmp_path / "data" / "train-00001-of-00002.parquet", [2, 2])
    write_parquet(tmp_path / "data" / "train-00000-of-00002.parquet", [0, 1, 0])
    source = open_images(tmp_path, "train")
    assert source.labels.tolist() == [0, 1, 0, 2, 2] and source.classes == ("0", "1", "2")
    assert source.decode(4).getpixel((0, 0))[0] == 20
    assert source.name(4) == "train-00001-of-00002.parquet row 1"


def test_missing_shard_is_an_error(tmp_path):
    write_parquet(tmp_path / "train-00000-of-00003.parquet", [0, 1])
    assert "1 train shards of 3" in refused_images(tmp_path)


def test_shards_may_have_the_hashes_that_the_hub_once_added(tmp_path):
    """As in its Tiny ImageNet, whose validation data are called "valid"."""
    write_parquet(tmp_path / "data" / "train-00000-of-00002-1359597a978bc4fa.parquet", [0])
    write_parquet(tmp_path / "data" / "train-00001-of-00002-0d4b3c2a1f5e6978.parquet", [1, 1])
    write_parquet(tmp_path / "data" / "valid-00000-of-00001-70d52db3c749a935.parquet", [1, 0])
    assert open_images(tmp_path, "train").labels.tolist() == [0, 1, 1]
    assert open_images(tmp_path, "val").labels.tolist() == [1, 0]
    last = tmp_path / "data" / "train-00001-of-00002-0d4b3c2a1f5e6978.parquet"
    last.rename(last.with_name("train-00000-of-00002-ffffffffffffffff.parquet"))
    assert "2 train shards of 2" in refused_images(tmp_path)


def test_a_damaged_column_of_labels_is_named(tmp_path):
    path = tmp_path / "train.parquet"
    write_parquet(path, [0, 1])
    place = pq.ParquetFile(path).metadata.row_group(0).column(2)
    assert place.path_in_schema == "label"
    content = bytearray(path.read_bytes())
    start = place.dictionary_page_offset or place.data_page_offset
    content[start : start + place.total_compressed_size] = b"\xff" * place.total_compressed_size
    path.write_bytes(content)
    assert f"cannot read column label of {path}" in refused_images(tmp_path)


def test_hidden_files_are_no_shards(tmp_path):
    write_parquet(tmp_path / "train.parquet", [0, 1])
    (tmp_path / "._train.parquet").write_bytes(b"attributes that macOS keeps beside a file")
    assert "it holds train;" in refused_images(tmp_path, "val")


def test_classes_come_from_train_when_the_split_names_none(tmp_path):
    write_parquet(tmp_path / "train.parquet", [0, 1], names=["cat", "dog"])
    write_parquet(tmp_path / "ood.parquet", [-1, -1, -1])
    source = open_images(tmp_path, "ood")
    assert source.classes == ("cat", "dog") and source.labels.tolist() == [-1] * 3


def test_numbered_classes_are_those_of_all_splits(tmp_path):
    write_parquet(tmp_path / "train.parquet", [0, 1, 0])
    write_parquet(tmp_path / "val.parquet", [0, 3])
    for split in ("train", "val"):
        assert open_images(tmp_path, split).classes == ("0", "1", "2", "3")


def test_classes_come_from_val_when_train_names_none(tmp_path):
    write_parquet(tmp_path / "train.parquet", [0, 1, 0])
    write_parquet(tmp_path / "val.parquet", [0, 1], names=["cat", "dog"])
    assert open_images(tmp_path, "train").classes == ("cat", "dog")


def test_a_damaged_row_group_is_one_line_that_names_the_file(tmp_path):
    path = tmp_path / "train.parquet"
    write_parquet(path, [0, 1, 0, 1])
    source, raw = open_images(tmp_path, "train"), bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    raw[start : start + 8] = b"\xff" * 8
    path.write_bytes(raw)
    source = pickle.loads(pickle.dumps(source))
    assert source.decode(0) is not None
    with pytest.raises(InputError, match=r"cannot read row group 1 of .*train\.parquet"):
        source.decode(2)


def test_parquet_source_can_be_sent_to_another_process(tmp_path):
    write_parquet(tmp_path / "train.parquet", [1, 0, 1])
    source = open_images(tmp_path, "train")
    copy = pickle.loads(pickle.dumps(source))
    assert copy.decode(2).tobytes() == source.decode(2).tobytes()


def test_bad_parquet_is_one_line(tmp_path):
    path = tmp_path / "train.parquet"
    path.write_bytes(b"PAR1 but no more")
    assert "cannot read" in refused_images(tmp_path)
    pq.write_table(pa.table({"picture": [b""], "label": [0]}), path)
    assert "no column 'image', only picture, label" in refused_images(tmp_path)
    write_parquet(path, [0, 5], names=["cat", "dog"])
    assert "run from 0 to 5" in refused_images(tmp_path)
    write_parquet(path, [0, None])
    assert "an integer in every row" in refused_images(tmp_path)
    write_parquet(path, [])
    assert "no rows" in refused_images(tmp_path)
    assert "no split 'val'" in refused_images(tmp_path, "val")


def test_tiny_imagenet_counts_and_names(tiny_imagenet):
    train, val, ood = (open_images(tiny_imagenet, split) for split in ("train", "val", "ood"))
    assert (len(train), len(val), len(ood)) == (42_000, 2_500, 1_000)
    assert train.classes == val.classes and len(train.classes) == 100
    assert train.classes[0] == "goldfish"
    assert torch.bincount(train.labels).tolist() == [420] * 100
    assert torch.bincount(val.labels).tolist() == [25] * 100
    assert ood.labels.unique().tolist() == [-1]
    assert train.decode(41_999).size == (64, 64)


def test_images_of_no_class_keep_their_label_in_batches(tmp_path):
    write_parquet(tmp_path / "train.parquet", [0, 1], names=["cat", "dog"])
    write_parquet(tmp_path / "ood.parquet", [-1, -1, -1])
    source = open_images(tmp_path, "ood")
    batches = list(EvalImages(source, image_size=8, batch_size=2))
    assert [batch.targets.tolist() for batch in batches] == [[-1, -1], [-1]]
    assert relabel(source, ["dog", "cat"]).labels.tolist() == [-1] * 3
    assert source.decode(1).getpixel((0, 0)) == (20, 20, 20)


def test_ood_parquet_of_tiny_imagenet():
    folder = Path(os.environ.get("PIDFORMER_DATA", "absent")) / "tiny-imagenet-100"
    if not folder.is_dir():
        pytest.skip("set PIDFORMER_DATA to the folder that holds tiny-imagenet-100")
    source = open_images(folder, "ood")
    (batch,) = EvalImages(sample(source, 8), image_size=64, batch_size=8)
    assert batch.images.shape == (8, 3, 64, 64) and batch.targets.tolist() == [-1] * 8
    assert float(batch.images.std()) > 0 and len(source) == 1000


@pytest.mark.parametrize("plain", [False, True])
def test_rows_with_masks(tmp_path, plain):
    source = open_segmentation(pairs.write_parquet(tmp_path, plain=plain), "train")
    assert len(source) == 16 and source.classes == ("red", "green", "blue", "grey")
    for index, (image, mask) in enumerate(pairs.random_pairs(16)):
        pair = source.decode(index)
        assert np.array_equal(pair.mask, mask) and np.array_equal(np.asarray(pair.image), image)
    assert source.name(7) == "train.parquet row 7"


@pytest.mark.skipif(not CAMVID.exists(), reason="needs ../shared/data/camvid")
def test_camvid():
    source = open_segmentation(CAMVID, "val")
    assert len(source) == 101 and len(source.classes) == 11
    pair = source.decode(3)
    assert pair.image.size == (320, 240) and pair.mask.shape == (240, 320)
