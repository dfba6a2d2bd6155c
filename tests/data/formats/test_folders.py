from __future__ import annotations

import os
from hashlib import sha256

import pytest
import torch

from pidformer.data import open_images
from tests.data.sets import encoded, refused_images, write_folders, write_parquet


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
    message = refused_images(tmp_path, "val")
    assert "only in val: fox" in message and "only in train: dog" in message


def test_empty_class_folder_is_named(tmp_path):
    write_folders(tmp_path, {"train": {"cat": 1, "dog": 0}})
    assert "hold no image: dog" in refused_images(tmp_path)


def test_missing_split_and_classes(tmp_path):
    write_folders(tmp_path, {"train": {"cat": 1}})
    assert "no split 'val'" in refused_images(tmp_path, "val")
    (tmp_path / "val").mkdir()
    assert "no class folder" in refused_images(tmp_path, "val")


@pytest.mark.parametrize("stored", ["val", "validation", "valid", "test"])
def test_validation_has_other_names(tmp_path, stored):
    write_folders(tmp_path / "folders", {"train": {"cat": 1}, stored: {"cat": 2}})
    assert len(open_images(tmp_path / "folders", "val")) == 2
    write_parquet(tmp_path / "parquet" / f"{stored}.parquet", [0, 1, 1])
    assert len(open_images(tmp_path / "parquet", "val")) == 3


def test_hidden_folders_hold_no_images(tmp_path):
    """Jupyter keeps copies in .ipynb_checkpoints, macOS attributes in __MACOSX."""
    write_folders(tmp_path, {"": {"cat": 3, "dog": 2}, "cat": {".ipynb_checkpoints": 2}})
    write_folders(tmp_path, {"__MACOSX": {"cat": 1}, ".cache": {"cat": 1}})
    with pytest.warns(UserWarning, match="held out"):
        train, val = open_images(tmp_path, "train"), open_images(tmp_path, "val")
    assert train.classes == val.classes == ("cat", "dog")
    assert sorted([*train.labels.tolist(), *val.labels.tolist()]) == [0, 0, 0, 1, 1]


def test_an_empty_class_of_a_set_without_splits_is_named(tmp_path):
    write_folders(tmp_path, {"": {"cat": 1, "dog": 1, "fox": 0}})
    with pytest.warns(UserWarning, match="held out"):
        assert "1 of 3 class folders" in refused_images(tmp_path)
    write_folders(tmp_path, {"": {"notes": 0}})
    (tmp_path / "notes" / "list.txt").write_text("no class of images")
    assert "no image set in" in refused_images(tmp_path)


def test_one_in_ten_of_each_class_is_held_out_by_its_name(tmp_path):
    counts = {"cat": 21, "dog": 2, "fox": 1}
    write_folders(tmp_path, {"": counts})
    with pytest.warns(UserWarning, match="held out"):
        train, val = open_images(tmp_path, "train"), open_images(tmp_path, "val")
    held = {val.name(index).partition("/")[2] for index in range(len(val))}
    assert len(held) == len(val) and val.labels.tolist() == [0, 0, 0, 1]
    assert held.isdisjoint(train.name(index).partition("/")[2] for index in range(len(train)))
    assert len(train) == 20
    names = [f"{c}/{path.name}" for c in counts for path in (tmp_path / c).iterdir()]
    cats = sorted((name for name in names if name < "d"), key=lambda n: sha256(n.encode()).digest())
    assert {*cats[:3]} < held


def test_a_set_too_small_to_hold_any_out_is_refused(tmp_path):
    """Training ended in a traceback: it had no validation images."""
    write_folders(tmp_path, {"": {"cat": 1, "dog": 1}})
    with pytest.warns(UserWarning, match="held out"):
        assert "no class has two" in refused_images(tmp_path, "val")
