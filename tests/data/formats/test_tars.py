from __future__ import annotations

import tarfile

import pytest

from pidformer.data import open_images
from pidformer.data.pictures import UnreadableImage, read_picture
from tests.data.sets import add_member, pictured, refused_images, write_tars

LABELS = {"train": [1, 0, 1, 1, 0], "val": [0, 1]}


def test_samples_are_read_in_order(tmp_path):
    source = open_images(write_tars(tmp_path, LABELS), "train")
    assert source.classes == ("0", "1") and source.labels.tolist() == LABELS["train"]
    for index in range(5):
        assert source.decode(index).tobytes() == read_picture(pictured(index)).tobytes()
    assert source.name(3) == "train-000001.tar train/s3"


def test_labels_may_be_in_json_and_cls_goes_first(tmp_path):
    changes = {
        "s0_cls": None,
        "s0_json": b'{"label": 1, "text": "a dog"}',
        "s1_json": b'{"label": 1}',
    }
    source = open_images(write_tars(tmp_path, {"train": [0, 0]}, **changes), "train")
    assert source.labels.tolist() == [1, 0]


def test_classes_are_named_by_a_file_or_numbered_over_splits(tmp_path):
    write_tars(tmp_path, {"train": [0, 3], "val": [0]})
    assert open_images(tmp_path, "val").classes == ("0", "1", "2", "3")
    (tmp_path / "classnames.txt").write_text("cat\ndog\nhen\nowl\n\n")
    assert open_images(tmp_path, "val").classes == ("cat", "dog", "hen", "owl")
    (tmp_path / "classnames.txt").write_text("cat\ndog\n")
    assert "run from 0 to 3, but the set has 2 classes" in refused_images(tmp_path)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("imagenet1k-train-0000.tar", "imagenet1k-validation-00.tar"),
        ("train/0.tar", "test/0.tar"),
        ("train.tar", "val.tar"),
        ("train/shard-00001.tar", "validation/part_0.tar"),
    ],
)
def test_published_names_of_shards(tmp_path, name, place):
    write_tars(tmp_path / "made", {"train": [0, 1]})
    for target in (tmp_path / "set" / name, tmp_path / "set" / place):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((tmp_path / "made" / "train-000000.tar").read_bytes())
    assert len(open_images(tmp_path / "set", "train")) == 2
    assert len(open_images(tmp_path / "set", "val")) == 2


def test_damaged_tars_are_one_line(tmp_path):
    path = write_tars(tmp_path, LABELS) / "train-000001.tar"
    raw = path.read_bytes()
    with tarfile.open(path) as tar:
        (*_, before, last) = tar
    # In a header, in a picture, between two members, behind the last one.
    for length in (0, 100, before.offset_data + 10, last.offset, last.offset_data + 512):
        path.write_bytes(raw[:length])
        assert f"cannot read {path} as tar" in refused_images(tmp_path), length
    path.write_bytes(b"\x1f\x8b" + raw[2:])
    assert "is it compressed" in refused_images(tmp_path)
    path.unlink()
    assert "2 train shards up to number 2, but not 1" in refused_images(tmp_path)
    assert "no split 'ood'" in refused_images(tmp_path, "ood")


def test_a_shard_cut_after_it_was_opened_is_unreadable(tmp_path):
    source = open_images(write_tars(tmp_path, LABELS), "train")
    path = tmp_path / "train-000000.tar"
    path.write_bytes(path.read_bytes()[:1600])
    with pytest.raises(UnreadableImage, match="cut since"):
        source.decode(1)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"s1_cls": None}, r"1 sample(s) of"),
        ({"s1_png": None}, r"or a picture: train/s1"),
        ({"s1_cls": b"dog"}, "must hold the number of a class, got \"b'dog'\""),
        ({"s1_cls": b"1.5"}, "must hold the number of a class"),
        ({"s1_cls": b"-2"}, "run from -2 to 1"),
        ({"s1_cls": b"9" * 30}, "must hold the number of a class"),
        ({"s1_cls": b"9" * 5000}, "5000 bytes; it is no label"),
        ({"s1_cls": None, "s1_json": b"{"}, "must hold the number of a class"),
        ({"s1_cls": None, "s1_json": b'{"label": "dog"}'}, "must hold the number of a class"),
    ],
)
def test_bad_labels_are_one_line(tmp_path, changes, line):
    assert line in refused_images(write_tars(tmp_path, {"train": [1, 0]}, **changes))


def test_two_sets_or_two_pictures_under_one_name_are_refused(tmp_path):
    path = write_tars(tmp_path, {"train": [1, 0]}) / "train-000000.tar"
    (tmp_path / "other-train-000000.tar").write_bytes(path.read_bytes())
    assert "2 train shards with 1 numbers" in refused_images(tmp_path)
    (tmp_path / "other-train-000000.tar").unlink()
    with tarfile.open(path, "a") as tar:
        add_member(tar, "train/s1.jpg", b"another")
    assert "two pictures of 's1'" in refused_images(tmp_path)


def test_names_links_and_devices_lead_nowhere(tmp_path):
    """A member's name is a name in messages; links are not followed, nothing is unpacked."""
    secret = tmp_path / "secret.png"
    secret.write_bytes(pictured(7))
    root = tmp_path / "set"
    root.mkdir()
    with tarfile.open(root / "train-000000.tar", "w") as tar:
        add_member(tar, "../../up.cls", b"1")
        add_member(tar, "../../up.png", pictured(0))
        add_member(tar, "/etc/root.cls", b"0")
        add_member(tar, "/etc/root.png", pictured(1))
    source = open_images(root, "train")
    assert source.decode(0).tobytes() == read_picture(pictured(0)).tobytes()
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "secret.png",
        "set",
        "train-000000.tar",
    ]
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
        with tarfile.open(root / "train-000000.tar", "w") as tar:
            add_member(tar, "a.cls", b"1")
            add_member(tar, "a.png", type=kind, linkname=str(secret))
        assert "or a picture: a" in refused_images(root)


def test_hidden_files_are_no_shards(tmp_path):
    write_tars(tmp_path, LABELS)
    (tmp_path / "._train-000000.tar").write_bytes(b"attributes that macOS keeps beside a file")
    assert open_images(tmp_path, "train").labels.tolist() == LABELS["train"]
