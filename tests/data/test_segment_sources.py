import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pidformer.data.formats.masks import default_palette
from pidformer.data.pictures import UnreadableImage
from pidformer.data.segmentation import open_segmentation
from pidformer.errors import InputError
from tests.data.pairs import random_pairs, write_ade, write_cityscapes, write_parquet

CAMVID = Path(__file__).parents[3] / "shared" / "data" / "camvid"


def test_ade20k_as_published(tmp_path):
    root = write_ade(tmp_path)
    expected = random_pairs(4)
    for location in (tmp_path, root):  # the folder, or the one that holds it
        source = open_segmentation(location, "train")
        assert len(source) == 4 and len(source.classes) == 150
        assert source.classes[0] == "wall" and source.classes[149] == "flag"
        assert source.palette.shape == (150, 3) and source.palette[2].tolist() == [6, 230, 230]
        for index, (image, mask) in enumerate(expected):
            pair = source.decode(index)
            assert np.array_equal(pair.mask, mask) and pair.mask.dtype == np.uint8
            assert np.abs(np.asarray(pair.image).astype(int) - image).mean() < 10
    assert len(open_segmentation(root, "val")) == 2


def test_a_tree_of_ones_own_classes(tmp_path):
    root = write_ade(tmp_path)
    colours = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]
    names = ["a", "b", "c", "d"]
    (root / "classes.json").write_text(json.dumps({"classes": names, "palette": colours}))
    source = open_segmentation(root, "train")
    assert source.classes == ("a", "b", "c", "d") and source.palette.tolist() == colours


@pytest.mark.parametrize("plain", [False, True])
def test_parquet_rows(tmp_path, plain):
    source = open_segmentation(write_parquet(tmp_path, plain=plain), "train")
    assert len(source) == 16 and source.classes == ("red", "green", "blue", "grey")
    for index, (image, mask) in enumerate(random_pairs(16)):
        pair = source.decode(index)
        assert np.array_equal(pair.mask, mask) and np.array_equal(np.asarray(pair.image), image)
    assert source.name(7) == "train.parquet row 7"


def test_cityscapes_keeps_the_nineteen_classes(tmp_path):
    root, stored = write_cityscapes(tmp_path)
    source = open_segmentation(root, "val")
    mask = source.decode(0).mask
    assert len(source.classes) == 19
    assert (mask[stored == 7] == 0).all() and (mask[stored == 33] == 18).all()
    assert (mask[stored < 7] == 255).all() and (mask[stored == 29] == 255).all()
    assert set(np.unique(mask)) <= set(range(19)) | {255}


@pytest.mark.skipif(not CAMVID.exists(), reason="needs ../shared/data/camvid")
def test_camvid():
    source = open_segmentation(CAMVID, "val")
    assert len(source) == 101 and len(source.classes) == 11
    pair = source.decode(3)
    assert pair.image.size == (320, 240) and pair.mask.shape == (240, 320)


def test_colours_differ():
    assert len({tuple(colour) for colour in default_palette(254).tolist()}) == 254


def test_a_label_beyond_the_classes_names_file_and_label(tmp_path):
    root = write_ade(tmp_path)
    bad = np.full((24, 32), 151, dtype=np.uint8)
    Image.fromarray(bad).save(root / "annotations/training/ADE_training_00000002.png")
    source = open_segmentation(root, "train")
    source.decode(1)
    with pytest.raises(InputError) as caught:
        source.decode(2)
    assert "ADE_training_00000002.png" in str(caught.value) and "label 151" in str(caught.value)
    assert "stored as 1 to 150" in str(caught.value)
    wide = np.full((24, 32), 300, dtype=np.uint16)
    Image.fromarray(wide).save(root / "annotations/training/ADE_training_00000002.png")
    with pytest.raises(InputError, match="label 300"):
        source.decode(2)


def test_image_and_mask_of_different_size_are_named(tmp_path):
    root = write_ade(tmp_path)
    path = root / "annotations/training/ADE_training_00000001.png"
    Image.fromarray(np.zeros((24, 30), dtype=np.uint8)).save(path)
    with pytest.raises(InputError, match=r"ADE_training_00000001.jpg: the image is 32 x 24, its"):
        open_segmentation(root, "train").decode(1)


def test_missing_partners_are_listed_up_to_ten(tmp_path):
    root = write_ade(tmp_path, train=14)
    for number in range(12):
        (root / f"annotations/training/ADE_training_{number:08d}.png").unlink()
    with pytest.raises(InputError) as caught:
        open_segmentation(root, "train")
    text = str(caught.value)
    assert text.startswith("12 file(s)") and text.count(".jpg") == 10 and "and 2 more" in text


def test_a_mask_of_colours_is_unreadable(tmp_path):
    root = write_ade(tmp_path)
    path = root / "annotations/training/ADE_training_00000001.png"
    Image.new("RGB", (32, 24)).save(path)
    with pytest.raises(UnreadableImage, match="3 channels"):
        open_segmentation(root, "train").decode(1)
    path.write_bytes(b"nothing")
    with pytest.raises(UnreadableImage):
        open_segmentation(root, "train").decode(1)


def test_a_palette_mask_gives_its_indices(tmp_path):
    root = write_ade(tmp_path)
    indexed = Image.frombytes("P", (32, 24), bytes([3]) * (24 * 32))
    indexed.putpalette([9, 9, 9] * 256)
    indexed.save(root / "annotations/training/ADE_training_00000001.png")
    assert (open_segmentation(root, "train").decode(1).mask == 2).all()


def test_places_that_hold_no_set(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        open_segmentation(tmp_path / "nothing", "train")
    with pytest.raises(InputError, match="no segmentation set in"):
        open_segmentation(tmp_path, "train")
    root = write_ade(tmp_path)
    with pytest.raises(InputError, match="no split 'test'"):
        open_segmentation(root, "test")
    rows = write_parquet(tmp_path / "rows")
    with pytest.raises(InputError, match="no split 'test'"):
        open_segmentation(rows, "test")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "must be"),
        ('{"names": []}', "must be"),
        ('{"classes": []}', "0 classes"),
        ('{"classes": ["a"], "ignore_index": 0}', "ignore_index 0"),
        ('{"classes": ["a"], "palette": [[1, 2]]}', "1 colours"),
    ],
)
def test_a_bad_legend_is_named(tmp_path, text, words):
    rows = write_parquet(tmp_path)
    (rows / "classes.json").write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        open_segmentation(rows, "train")
    assert "classes.json" in str(caught.value)
    (rows / "classes.json").unlink()
    with pytest.raises(InputError, match=r"no classes\.json"):
        open_segmentation(rows, "train")
