"""The table of formats: what `data check` counts is what the readers read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pidformer.data import open_images
from pidformer.data.benchmarks import open_corrupted, open_shift
from pidformer.data.cache import cache_images
from pidformer.data.check import check_data
from pidformer.data.formats.indexed import index_images
from pidformer.data.formats.table import FORMATS, find_format
from pidformer.data.imagenet import subset_classes
from pidformer.data.segmentation import open_segmentation
from pidformer.data.text import find_text
from pidformer.errors import InputError
from tests.data import pairs, sets
from tests.data.sets import refused_images


def write_text(root: Path) -> None:
    for name, lines in (("train", 7), ("valid", 2), ("test", 3)):
        (root / f"wiki.{name}.tokens").write_text(" a few words \n" * lines)


def write_image_parquet(root: Path) -> None:
    for split, count in (("train", 5), ("val", 3), ("ood", 2)):
        sets.write_parquet(root / f"{split}.parquet", [0] * count, names=["cat", "dog"])


def write_shifted(root: Path) -> None:
    sets.write_folders(root.parent, {root.name: dict.fromkeys(subset_classes("imagenet-a"), 1)})


def write_cache(root: Path) -> None:
    cache_images(sets.write_photos(root.parent / "photos"), root, size=16)


def write_index(root: Path) -> None:
    index_images(str(sets.write_tars(root.parent / "tars", {"train": [0, 1], "val": [1]})), root)


WRITERS = {
    "text": write_text,
    "ADE20K": pairs.write_ade,
    "Cityscapes": pairs.write_cityscapes,
    "segmentation Parquet": pairs.write_parquet,
    "ImageNet-A/R/O": write_shifted,
    "ImageNet-C, Tiny-ImageNet-C and CIFAR-C": sets.write_cifar_c,
    "CIFAR": sets.write_cifar,
    "image cache": write_cache,
    "index of an object store": write_index,
    "Arrow image set": lambda root: sets.write_arrow(root, {"train": [0, 1, 1], "test": [1, 0, 0]}),
    "WebDataset": lambda root: sets.write_tars(root, {"train": [0, 1, 1], "val": [1, 0, 0]}),
    "Parquet image set": write_image_parquet,
    "ImageNet folders": lambda root: sets.write_folders(
        root, {"train": {"n00000001": 4, "n00000002": 2}, "val": {"n00000001": 1, "n00000002": 2}}
    ),
}
TRAINED = {"train": "train", "training": "train", "val": "val", "validation": "val", "test": "val"}


def lines_of(folder: Path, split: str) -> int:
    (path,) = find_text(folder, split)
    return len(path.read_text().splitlines())


def benchmark(folder: Path, split: str):
    if split == "all":
        return open_shift(folder)
    corruption, severity = split.split("/")
    return open_corrupted(folder, corruption, int(severity))


READERS = {
    "images": lambda folder, split: open_images(folder, TRAINED.get(split, split)),
    "segmentation": lambda folder, split: open_segmentation(folder, TRAINED[split]),
    "benchmark": benchmark,
}


def test_every_format_has_a_tree_to_test_it_with():
    assert set(WRITERS) == {known.name for known in FORMATS}


@pytest.mark.parametrize("known", FORMATS, ids=lambda known: known.name)
def test_what_is_checked_is_what_is_read(tmp_path, known):
    folder = tmp_path / "imagenet-a" if known.name == "ImageNet-A/R/O" else tmp_path / "set"
    folder.mkdir()
    WRITERS[known.name](folder)
    assert find_format(folder) is known
    found = check_data(folder, sample=None)
    assert found.is_sound and found.splits and found.layout == known.title_of(folder)
    for split in found.splits:
        assert split.count > 0
        if known.task == "text":
            assert split.count == lines_of(folder, split.name)
            continue
        source = READERS[known.task](folder, split.name)
        assert split.count == split.opened == len(source)
        sizes = {source.decode(index)[0].size if known.task == "segmentation"
                 else source.decode(index).size for index in range(len(source))}  # fmt: skip
        assert set(split.sizes) == {f"{width}x{height}" for width, height in sizes}
        if known.task != "segmentation":
            counts = source.labels.bincount(minlength=len(source.classes)).tolist()
            assert split.classes == dict(zip(source.classes, counts, strict=True))


def test_a_set_of_another_task_is_named(tmp_path):
    pairs.write_ade(tmp_path)
    assert "which holds ADE20K; it must hold" in refused_images(tmp_path)
    write_image_parquet(tmp_path / "images")
    with pytest.raises(InputError, match="which holds Parquet image set; it must hold images/"):
        open_segmentation(tmp_path / "images", "train")


def test_a_mask_that_the_reader_refuses_is_damage_to_the_check(tmp_path):
    root = pairs.write_ade(tmp_path)
    (root / "images/training/ADE_training_00000001.jpg").unlink()
    with pytest.raises(InputError, match="have no partner"):
        open_segmentation(root, "train")
    (training, _) = check_data(root, sample=1).splits
    assert training.damaged == ("training/ADE_training_00000001.png: it has no image",)
    (root / "classes.json").write_text('{"classes": ["one", "two"]}')
    (_, validation) = check_data(root).splits
    with pytest.raises(InputError, match="the set has 2 classes") as caught:
        open_segmentation(root, "val").decode(0)
    assert validation.damaged[0] == str(caught.value)


def test_no_image_set_at_location(tmp_path):
    assert "no image set at" in refused_images(tmp_path / "absent")
    assert "no image set in" in refused_images(tmp_path)
    (tmp_path / "file").write_text("")
    assert "is a file" in refused_images(tmp_path / "file")


def test_places_that_hold_no_set(tmp_path):
    with pytest.raises(InputError, match="no segmentation set at"):
        open_segmentation(tmp_path / "nothing", "train")
    with pytest.raises(InputError, match="no segmentation set in"):
        open_segmentation(tmp_path, "train")
    root = pairs.write_ade(tmp_path)
    with pytest.raises(InputError, match="no split 'test'"):
        open_segmentation(root, "test")
    rows = pairs.write_parquet(tmp_path / "rows")
    with pytest.raises(InputError, match="no split 'test'"):
        open_segmentation(rows, "test")
