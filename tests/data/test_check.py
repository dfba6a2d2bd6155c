import gzip
import io
import json
import lzma
import pickle
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import pidformer as pf
from pidformer.data.check import check_data
from tests.data.pairs import write_ade, write_cityscapes
from tests.data.sets import encoded, write_folders, write_parquet


def by_name(found):
    return {split.name: split for split in found.splits}


def mask(size=(9, 8), level=3):
    return encoded_grey(np.full(size[::-1], level, np.uint8))


def encoded_grey(levels):
    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, "PNG")
    return buffer.getvalue()


def cifar(root):
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]
    for name in names:
        content = {"data": np.zeros((4, 3072), np.uint8), "labels": [0, 1, 1, 2]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    meta = pickle.dumps({"label_names": list("abc")}, protocol=2)
    (folder / "batches.meta").write_bytes(meta)
    return root


def test_imagenet_folders_are_counted_by_class(tmp_path):
    counts = {"train": {"n00000001": 5, "n00000002": 3}, "val": {"n00000001": 1, "n00000002": 2}}
    found = check_data(write_folders(tmp_path / "set", counts))
    assert found.layout == "ImageNet folders" and found.is_sound
    for split, report in by_name(found).items():
        assert report.classes == counts[split] and report.count == sum(counts[split].values())
        assert report.opened == report.count and report.sizes == {"9x8": report.count}


def test_damage_is_named(tmp_path):
    root = write_folders(tmp_path / "set", {"train": {"a": 4, "b": 4}, "val": {"a": 2, "b": 2}})
    broken = root / "train" / "b" / "b_1.jpg"
    broken.write_bytes(encoded()[:100])
    (root / "val" / "a" / "a_0.JPEG").write_bytes(b"")
    found = check_data(root)
    assert found.layout == "image folders" and not found.is_sound
    train, val = found.splits
    assert len(train.damaged) == 1 and "b/b_1.jpg" in train.damaged[0] and train.opened == 7
    assert len(val.damaged) == 1 and "a_0.JPEG" in val.damaged[0]
    assert [picture for _, picture in found.pictures].count(None) == 2


def test_a_split_that_cannot_be_opened_does_not_hide_the_other(tmp_path):
    write_parquet(tmp_path / "train.parquet", [0, 1, 1])
    (tmp_path / "val.parquet").write_bytes(b"PAR1 no")
    found = by_name(check_data(tmp_path))
    assert found["train"].count == 3 and "val.parquet" in found["val"].error


def test_a_sample_is_spread_over_the_split(tmp_path):
    images = [encoded(n, kind="PNG") for n in range(50)]
    images[-1] = b"broken"
    write_parquet(tmp_path / "train.parquet", [0] * 50, names=["zero"], images=images)
    (report,) = check_data(tmp_path, sample=5).splits
    assert report.opened == 4 and len(report.damaged) == 1 and report.count == 50
    assert check_data(tmp_path, sample=None).splits[0].opened == 49


def test_parquet_says_what_has_no_class(tmp_path):
    write_parquet(tmp_path / "train.parquet", [0, 1, 1], names=["cat", "dog"])
    write_parquet(tmp_path / "ood.parquet", [-1, -1], names=["cat", "dog"])
    found = check_data(tmp_path)
    assert found.layout == "Parquet image set"
    assert by_name(found)["train"].classes == {"cat": 1, "dog": 2}
    assert by_name(found)["ood"].classes == {"(no class)": 2}


def test_segmentation_parquet_checks_masks_too(tmp_path):
    images = [encoded(size=(9, 8))] * 4
    masks = [mask(), mask(size=(5, 5)), None, b"broken"]
    table = pa.table({"image": images, "mask": pa.array(masks, pa.binary())})
    pq.write_table(table, tmp_path / "train.parquet")
    names = ["road", "sky", "tree", "car"]
    (tmp_path / "classes.json").write_text(json.dumps({"classes": names}))
    found = check_data(tmp_path)
    (train,) = found.splits
    assert found.layout == "segmentation Parquet" and train.count == 4 and train.opened == 1
    assert train.sizes == {"9x8": 1} and train.facts["classes"] == "road, sky, tree, car"
    words = " ".join(train.damaged)
    assert "the image is 9 x 8, its mask 5 x 5" in words and "no mask" in words and "row 3" in words


def test_ade20k_pairs_images_with_annotations(tmp_path):
    root = tmp_path / "ADEChallengeData2016"
    for split, count in (("training", 3), ("validation", 2)):
        for kind in ("images", "annotations"):
            (root / kind / split).mkdir(parents=True)
        for n in range(count):
            (root / "images" / split / f"ADE_{n}.jpg").write_bytes(encoded())
            (root / "annotations" / split / f"ADE_{n}.png").write_bytes(mask())
    (root / "annotations" / "training" / "ADE_2.png").unlink()
    for place in (tmp_path, root):
        found = by_name(check_data(place))
        assert {name: r.count for name, r in found.items()} == {"training": 3, "validation": 2}
        assert found["training"].damaged == ("training/ADE_2.jpg: it has no mask",)
        assert found["validation"].opened == 2


def test_a_split_that_training_would_miss_is_noted(tmp_path):
    write_folders(tmp_path / "folders", {"train": {"cat": 1, "dog": 1}})
    write_parquet(tmp_path / "rows" / "test.parquet", [0, 1])
    write_parquet(tmp_path / "both" / "train.parquet", [0, 1])
    write_parquet(tmp_path / "both" / "valid.parquet", [0, 1])
    write_ade(tmp_path, val=0)
    shutil.rmtree(tmp_path / "ADEChallengeData2016" / "images" / "validation")
    places = ("folders", "rows", "both", "ADEChallengeData2016")
    notes = [check_data(tmp_path / place).notes for place in places]
    assert notes == [("no val split",), ("no train split",), (), ("no val split",)]


def test_masks_of_which_no_pixel_counts_are_damage(tmp_path):
    """0 and 255, as masks of one object often are: both are ignored, and the loss was nan."""
    for kind in ("images", "annotations"):
        (tmp_path / kind).mkdir()
    (tmp_path / "classes.json").write_text('{"classes": ["ground", "object"]}')
    levels = np.zeros((8, 8), np.uint8)
    levels[:2] = 255
    for n in range(4):
        (tmp_path / "images" / f"{n}.jpg").write_bytes(encoded(size=(8, 8)))
        (tmp_path / "annotations" / f"{n}.png").write_bytes(encoded_grey(levels))
    train, val = check_data(tmp_path).splits
    assert "no pixel of its masks counts" in train.error
    assert val.error is None and val.facts["labelled pixels"] == "0.0%"  # as of a blank test split
    levels[:4] = 1
    for n in range(4):
        (tmp_path / "annotations" / f"{n}.png").write_bytes(encoded_grey(levels))
    train, val = check_data(tmp_path).splits
    assert train.error is None and train.facts["labelled pixels"] == "50.0%"
    assert train.facts["classes without a pixel"] == "object"


def test_text_is_counted_as_the_language_models_do(tmp_path):
    lines = " = Title = \n\n the cat <unk> sat \n"
    (tmp_path / "wiki.valid.tokens").write_text(lines)
    (tmp_path / "wiki.test.tokens.xz").write_bytes(lzma.compress(lines.encode()))
    found = check_data(tmp_path)
    assert found.layout == "WikiText" and found.notes == ("no train split",)
    for report in found.splits:
        assert report.count == 3 and report.facts["words"] == 7
        assert report.facts["tokens with <eos>"] == 10 and report.facts["different words"] == 6
    (tmp_path / "wiki.test.tokens.xz").write_bytes(b"no xz")
    assert "is damaged" in by_name(check_data(tmp_path))["test"].error


@pytest.mark.parametrize("valid", ["valid.txt.gz", "dev.txt.gz", "valid/a.txt.gz"])
def test_every_text_that_training_takes_is_recognised(tmp_path, valid):
    for place in (tmp_path / "train" / "a.txt", tmp_path / valid):
        place.parent.mkdir(exist_ok=True)
    (tmp_path / "train" / "a.txt").write_text("one two\nthree")
    (tmp_path / "train" / "b.txt.gz").write_bytes(gzip.compress(b"two\n\n"))
    (tmp_path / valid).write_bytes(gzip.compress(b"one two\n"))
    found = by_name(check_data(tmp_path))
    assert found["train"].count == 4 and found["train"].facts["words"] == 4
    assert found["train"].facts["different words"] == 3
    assert found["valid"].facts["tokens with <eos>"] == 3
    (tmp_path / "train" / "b.txt.gz").write_bytes(b"no gz")
    assert "b.txt.gz is damaged" in by_name(check_data(tmp_path))["train"].error


def test_folders_of_classes_are_no_text(tmp_path):
    for place in ("classes", "pictures"):
        (tmp_path / place / "train" / "cat").mkdir(parents=True)
        (tmp_path / place / "train" / "notes.txt").write_text("not a text to train on\n")
    (tmp_path / "classes" / "train" / "cat" / "0.png").write_bytes(encoded())
    assert check_data(tmp_path / "classes").layout == "image folders"
    (tmp_path / "pictures" / "train" / "cat").rmdir()
    (tmp_path / "pictures" / "train" / "0.jpg").write_bytes(encoded())
    (train,) = check_data(tmp_path / "pictures").splits
    assert "no class folder" in train.error


def test_cityscapes_pairs_images_with_labels(tmp_path):
    root, _ = write_cityscapes(tmp_path)
    found = check_data(root)
    assert found.layout == "Cityscapes" and all(not s.damaged and s.opened for s in found.splits)
    count = sum(split.count for split in found.splits)
    assert count == len(list(root.glob("leftImg8bit/*/*/*.png")))
    next(root.glob("gtFine/*/*/*_labelIds.png")).unlink()
    (damage,) = [line for split in check_data(root).splits for line in split.damaged]
    assert "it has no mask" in damage


def test_cifar(tmp_path):
    found = check_data(cifar(tmp_path))
    assert found.layout == "CIFAR-10" and by_name(found)["train"].count == 20
    assert by_name(found)["test"].classes == {"a": 1, "b": 2, "c": 1}
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(b"junk")
    assert "test_batch" in by_name(check_data(tmp_path))["test"].error


def test_cifar_c_by_corruption_and_severity(tmp_path):
    np.save(tmp_path / "fog.npy", np.zeros((10, 32, 32, 3), np.uint8))
    np.save(tmp_path / "labels.npy", np.tile([0, 1], 5))
    found = check_data(tmp_path)
    assert found.layout == "CIFAR-C" and len(found.splits) == 5
    assert by_name(found)["fog/3"].count == 2 and "lacks gaussian_noise" in found.notes[0]


@pytest.mark.parametrize("group", ["", "weather/"])
def test_corrupted_folders(tmp_path, group):
    root = tmp_path / "ImageNet-C"
    write_folders(root / f"{group}fog", {str(s): {"n00000001": 2} for s in (1, 2)})
    found = check_data(root)
    assert found.layout == "ImageNet-C" and list(by_name(found)) == ["fog/1", "fog/2"]
    assert by_name(found)["fog/2"].count == 2


def test_shifted_sets_must_have_their_classes(tmp_path):
    root = tmp_path / "imagenet-a"
    (root / "n00000001").mkdir(parents=True)
    (root / "n00000001" / "a.jpg").write_bytes(encoded())
    found = check_data(root)
    assert found.layout == "ImageNet-A" and "missing" in found.splits[0].error


def test_what_has_no_layout_is_refused_with_what_it_contains(tmp_path):
    with pytest.raises(pf.InputError, match="known are ImageNet folders"):
        check_data(tmp_path)
    write_parquet(tmp_path / "mine" / "train.parquet", [0])
    with pytest.raises(pf.InputError, match=r"mine \(Parquet image set\)"):
        check_data(tmp_path)
    with pytest.raises(pf.InputError, match="existing folder"):
        check_data(tmp_path / "gone")
    with pytest.raises(pf.InputError, match="is a file"):
        check_data(tmp_path / "mine" / "train.parquet")
    with pytest.raises(pf.InputError, match="sample"):
        check_data(tmp_path / "mine", sample=0)


def test_the_command(run, tmp_path):
    root = write_folders(tmp_path / "set", {"train": {"a": 2, "b": 2}, "val": {"a": 2, "b": 2}})
    code, out, _ = run("data", "check", root, "--out", tmp_path / "sheet.png")
    assert code == 0 and "image folders" in out and (tmp_path / "sheet.png").exists()
    (root / "train" / "a" / "a_0.JPEG").write_bytes(b"broken")
    code, out, _ = run("data", "check", root)
    assert code == 1 and "damaged: train/a/a_0.JPEG" in out
    code, out, _ = run("data", "check", root, "--json", "--sample", 0)
    assert code == 1 and json.loads(out)["splits"][0]["damaged"]
    code, out, err = run("data", "check", tmp_path / "gone")
    assert code == 2 and out == "" and err.count("\n") == 1
