from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pidformer.data import open_images
from pidformer.errors import InputError
from tests.data.sets import encoded, write_folders, write_parquet


def refused(location, split: str = "train") -> str:
    with pytest.raises(InputError) as caught:
        open_images(location, split)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- digits


def test_digits_are_split_evenly_and_without_overlap():
    train, val = open_images("digits", "train"), open_images(None, "val")
    assert (len(train), len(val)) == (1437, 360)
    assert not set(train.rows) & set(val.rows)
    assert torch.bincount(val.labels).tolist() == pytest.approx([36] * 10, abs=1)
    image = train.decode(0)
    assert (image.mode, image.size, train.channels) == ("L", (8, 8), 1)
    assert max(train.decode(i).getextrema()[1] for i in range(20)) == 255
    assert train.classes == tuple("0123456789")


def test_digits_have_two_splits():
    assert "known: train, val" in refused("digits", "test")


# --- folders


def test_a_link_to_a_folder_above_it_repeats_no_image(tmp_path):
    root = write_folders(tmp_path, {"train": {"cat": 2, "dog": 1}, "val": {"cat": 1, "dog": 1}})
    (root / "train" / "cat" / "again").symlink_to(root / "train" / "cat")
    (root / "train" / "dog" / "more").symlink_to(root / "val" / "dog")
    source = open_images(root, "train")
    assert source.labels.tolist() == [0, 0, 1, 1]


def test_folder_labels_are_ranks_of_sorted_names(tmp_path):
    write_folders(tmp_path, {"train": {"n20": 1, "n03": 4}, "val": {"n03": 1, "n20": 2}})
    (tmp_path / "train" / "n03" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / "n03" / "._n03_0.JPEG").write_bytes(b"a hidden file")
    train, val = open_images(tmp_path, "train"), open_images(str(tmp_path), "val")
    assert train.classes == val.classes == ("n03", "n20")
    assert train.labels.tolist() == [0, 0, 0, 0, 1] and val.labels.tolist() == [0, 1, 1]
    assert train.labels.dtype == torch.int64
    assert train.name(0) == os.path.join("train/n03", "n03_0.JPEG")
    assert train.decode(2).mode == "RGB"


def test_images_may_sit_deeper_in_a_class_folder(tmp_path):
    deep = tmp_path / "train" / "n01" / "images"
    deep.mkdir(parents=True)
    (deep / "a.JPEG").write_bytes(encoded())
    assert len(open_images(tmp_path, "train")) == 1


def test_classes_that_differ_between_splits_are_shown(tmp_path):
    write_folders(tmp_path, {"train": {"cat": 1, "dog": 1}, "val": {"cat": 1, "fox": 1}})
    message = refused(tmp_path, "val")
    assert "only in val: fox" in message and "only in train: dog" in message


def test_empty_class_folder_is_named(tmp_path):
    write_folders(tmp_path, {"train": {"cat": 1, "dog": 0}})
    assert "hold no image: dog" in refused(tmp_path)


def test_missing_split_and_classes(tmp_path):
    write_folders(tmp_path, {"train": {"cat": 1}})
    assert "no split 'val'" in refused(tmp_path, "val")
    (tmp_path / "val").mkdir()
    assert "no class folder" in refused(tmp_path, "val")


@pytest.mark.parametrize("stored", ["val", "validation", "test"])
def test_validation_has_other_names(tmp_path, stored):
    write_folders(tmp_path / "folders", {"train": {"cat": 1}, stored: {"cat": 2}})
    assert len(open_images(tmp_path / "folders", "val")) == 2
    write_parquet(tmp_path / "parquet" / f"{stored}.parquet", [0, 1, 1])
    assert len(open_images(tmp_path / "parquet", "val")) == 3


def test_no_image_set_at_location(tmp_path):
    assert "no image set at" in refused(tmp_path / "absent")
    assert "no image set in" in refused(tmp_path)
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(tmp_path / "file")


# --- Parquet


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
    assert "1 train shards of 3" in refused(tmp_path)


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
    assert "cannot read" in refused(tmp_path)
    pq.write_table(pa.table({"picture": [b""], "label": [0]}), path)
    assert "no column 'image', only picture, label" in refused(tmp_path)
    write_parquet(path, [0, 5], names=["cat", "dog"])
    assert "run from 0 to 5" in refused(tmp_path)
    write_parquet(path, [0, None])
    assert "an integer in every row" in refused(tmp_path)
    write_parquet(path, [])
    assert "no rows" in refused(tmp_path)
    assert "no split 'val'" in refused(tmp_path, "val")


@pytest.fixture(scope="module")
def tiny_imagenet() -> Path:
    folder = os.environ.get("PIDFORMER_DATA")
    if folder is None or not (Path(folder) / "tiny-imagenet-100").is_dir():
        pytest.skip("set PIDFORMER_DATA to the folder that holds tiny-imagenet-100")
    return Path(folder) / "tiny-imagenet-100"


def test_tiny_imagenet_counts_and_names(tiny_imagenet):
    train, val, ood = (open_images(tiny_imagenet, split) for split in ("train", "val", "ood"))
    assert (len(train), len(val), len(ood)) == (42_000, 2_500, 1_000)
    assert train.classes == val.classes and len(train.classes) == 100
    assert train.classes[0] == "goldfish"
    assert torch.bincount(train.labels).tolist() == [420] * 100
    assert torch.bincount(val.labels).tolist() == [25] * 100
    assert ood.labels.unique().tolist() == [-1]
    assert train.decode(41_999).size == (64, 64)


# --- CIFAR


def write_cifar(root: Path, hundred: bool = False, protocol: int = 2) -> dict[str, np.ndarray]:
    rng, written = np.random.default_rng(0), {}
    folder = root / ("cifar-100-python" if hundred else "cifar-10-batches-py")
    folder.mkdir(parents=True)
    names = ["train", "test"] if hundred else [f"data_batch_{n}" for n in range(1, 6)]
    for name in names if hundred else [*names, "test_batch"]:
        written[name] = rng.integers(256, size=(2, 3072), dtype=np.uint8)
        key = "fine_labels" if hundred else "labels"
        content = {"data": written[name], key: [0, 1], "batch_label": name.encode()}
        (folder / name).write_bytes(pickle.dumps(content, protocol))
    meta = {"fine_label_names" if hundred else "label_names": ["cat", "dog"]}
    (folder / ("meta" if hundred else "batches.meta")).write_bytes(pickle.dumps(meta, protocol))
    return written


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize(("hundred", "count"), [(False, 10), (True, 2)])
def test_cifar(tmp_path, hundred, count, protocol):
    written = write_cifar(tmp_path, hundred, protocol)
    train, val = open_images(tmp_path, "train"), open_images(tmp_path, "val")
    assert (len(train), len(val)) == (count, 2) and train.classes == ("cat", "dog")
    assert train.labels.tolist() == [0, 1] * (count // 2)
    first = written["train" if hundred else "data_batch_1"][0].reshape(3, 32, 32)
    np.testing.assert_array_equal(np.asarray(train.decode(0)), first.transpose(1, 2, 0))
    inner = tmp_path / ("cifar-100-python" if hundred else "cifar-10-batches-py")
    assert len(open_images(inner, "test")) == 2


class Malice:
    def __reduce__(self):
        return os.system, ("touch owned",)


class CodecMalice:
    def __reduce__(self):
        import _codecs

        return _codecs.encode, ("bomb", "zlib")


@pytest.mark.parametrize(("malice", "named"), [(Malice(), "system"), (CodecMalice(), "zlib")])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_cifar_pickles_cannot_call_anything(tmp_path, monkeypatch, malice, named, protocol):
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": malice, "labels": []}, protocol))
    message = refused(tmp_path)
    assert named in message
    assert not (tmp_path / "owned").exists()


def test_broken_cifar_is_one_line(tmp_path):
    write_cifar(tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    assert "unknown split" in refused(tmp_path, "ood")
    for content in (b"", b"\x80\x02garbage\n\n", pickle.dumps([1, 2]), pickle.dumps({"data": 3})):
        (folder / "data_batch_2").write_bytes(content)
        assert "download the set again" in refused(tmp_path)
    bad = {"data": np.zeros((2, 9), np.uint8), "labels": [0, 1]}
    (folder / "data_batch_2").write_bytes(pickle.dumps(bad))
    assert "uint8 rows of 3072" in refused(tmp_path)
    (folder / "data_batch_2").unlink()
    assert "missing" in refused(tmp_path)
    write_cifar(tmp_path, hundred=True)
    assert "CIFAR-10 and CIFAR-100" in refused(tmp_path)
