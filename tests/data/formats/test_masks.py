import numpy as np
import pytest
from PIL import Image

from pidformer.data.formats.masks import default_palette
from pidformer.data.pictures import UnreadableImage
from pidformer.data.segmentation import open_segmentation
from pidformer.errors import InputError
from tests.data.pairs import write_ade, write_parquet


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


def test_a_mask_of_colours_or_fractions_is_unreadable(tmp_path):
    root = write_ade(tmp_path)
    path = root / "annotations/training/ADE_training_00000001.png"
    Image.new("RGB", (32, 24)).save(path)
    with pytest.raises(UnreadableImage, match="3 channels"):
        open_segmentation(root, "train").decode(1)
    Image.new("F", (32, 24)).save(path, "TIFF")
    with pytest.raises(UnreadableImage, match="float32 numbers"):
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
