import json

import numpy as np
import pytest
from PIL import Image

from pidformer.data.segmentation import open_segmentation
from pidformer.errors import InputError
from tests.data.pairs import random_pairs, write_ade, write_cityscapes


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


def test_cityscapes_keeps_the_nineteen_classes(tmp_path):
    root, stored = write_cityscapes(tmp_path)
    source = open_segmentation(root, "val")
    mask = source.decode(0).mask
    assert len(source.classes) == 19
    assert (mask[stored == 7] == 0).all() and (mask[stored == 33] == 18).all()
    assert (mask[stored < 7] == 255).all() and (mask[stored == 29] == 255).all()
    assert set(np.unique(mask)) <= set(range(19)) | {255}


def test_missing_partners_are_listed_up_to_ten(tmp_path):
    root = write_ade(tmp_path, train=14)
    for number in range(12):
        (root / f"annotations/training/ADE_training_{number:08d}.png").unlink()
    with pytest.raises(InputError) as caught:
        open_segmentation(root, "train")
    text = str(caught.value)
    assert text.startswith("12 file(s)") and text.count(".jpg") == 10 and "and 2 more" in text


def test_two_files_of_one_name_are_refused(tmp_path):
    """One of them was left out, and nobody told."""
    root = write_ade(tmp_path)
    first = root / "images/training/ADE_training_00000001.jpg"
    first.with_suffix(".png").write_bytes(first.read_bytes())
    with pytest.raises(InputError, match=r"00000001\.jpg and .*00000001\.png have one name"):
        open_segmentation(root, "train")
    root, _ = write_cityscapes(tmp_path / "city")
    found = next(root.glob("leftImg8bit/val/*/*.png"))
    (found.parent.parent / "other").mkdir()
    (found.parent.parent / "other" / found.name).write_bytes(found.read_bytes())
    with pytest.raises(InputError, match="have one name"):
        open_segmentation(root, "val")


def test_hidden_folders_are_no_splits(tmp_path):
    for kind, mode in (("images", "RGB"), ("annotations", "L")):
        (tmp_path / kind / ".ipynb_checkpoints").mkdir(parents=True)
        for n in range(4):
            Image.new(mode, (8, 8)).save(tmp_path / kind / f"{n}.png")
    assert len(open_segmentation(tmp_path, "train")) == 3
