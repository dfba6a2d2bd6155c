from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from pidformer.data import Augment, Batch, EvalImages, TrainImages, open_images
from pidformer.errors import InputError
from tests.data.sets import encoded, numbered_set, write_folders, write_parquet

PLAIN = Augment(crop="none", flip=0)


def broken_set(*broken: int, count: int = 20):
    source = numbered_set(count)
    source.broken = frozenset(broken)
    return source


def training(source, **options) -> TrainImages:
    options = {"image_size": 4, "batch_size": 4, "augment": PLAIN, "corrupt_limit": 0.2, **options}
    return TrainImages(source, mean=(0.5,) * 3, std=(0.2,) * 3, **options)


def seen_in(batches) -> list[int]:
    return [round(255 * image[0, 0, 0].item()) for b in batches for image in b.images]


ways = pytest.mark.parametrize(
    "options",
    [{"resident": True}, {"resident": False}, {"resident": False, "num_workers": 2}],
    ids=["resident", "streamed", "workers"],
)


@ways
def test_broken_image_is_replaced_by_the_next_and_named_once(options):
    whole = seen_in(training(broken_set()).epoch(0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train = training(broken_set(7, 8, 19), **options)
        seen = seen_in(train.epoch(0))
        labels = torch.cat([b.targets for b in train.epoch(0)])
    replaced = {7: 9, 8: 9, 19: 0}
    assert seen == [replaced.get(number, number) for number in whole]
    assert labels.tolist() == [number % 2 for number in seen]
    text = " ".join(str(warning.message) for warning in caught)
    assert [text.count(f"image-{n}") for n in (7, 8, 19)] == [1, 1, 1]


@ways
@pytest.mark.filterwarnings("ignore:.*unreadable")
def test_too_many_broken_images_are_an_error_with_names(options):
    with pytest.raises(InputError, match="of 20 images cannot be read") as caught:
        list(training(broken_set(*range(1, 16)), **options).epoch(0))
    message = str(caught.value)
    assert "\n" not in message and "corrupt_limit=0.2 allows 4" in message
    assert message.count("image-") <= 10


@ways
def test_limit_of_zero_allows_none(options):
    with pytest.raises(InputError, match="allows 0: image-3;"):
        list(training(broken_set(3), corrupt_limit=0, **options).epoch(0))


@ways
@pytest.mark.filterwarnings("ignore:.*unreadable")
def test_wholly_broken_set_is_an_error(options):
    with pytest.raises(InputError, match="of 20 images cannot be read"):
        list(training(broken_set(*range(20)), corrupt_limit=1, **options).epoch(0))


def evaluated(source, **options) -> tuple[EvalImages, list[Batch]]:
    loader = EvalImages(source, image_size=4, batch_size=4, **options)
    return loader, list(loader)


@pytest.mark.slow
@ways
@pytest.mark.filterwarnings("ignore:.*left out")
def test_evaluation_leaves_broken_images_out(options):
    source = broken_set(4, 5, 6, 7, 9)
    loader, batches = evaluated(source, corrupt_limit=0.25, **options)
    assert [len(b.targets) for b in batches] == [4, 3, 4, 4]
    assert seen_in(batches) == [n for n in range(20) if n not in source.broken]
    assert loader.skipped == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert seen_in(loader) == seen_in(batches)
    with pytest.raises(InputError, match="5 of 20"):
        evaluated(source, corrupt_limit=0.2, **options)


def test_truncated_files_of_real_formats(tmp_path):
    write_folders(tmp_path / "folders", {"train": {"cat": 8}})
    path = tmp_path / "folders" / "train" / "cat" / "cat_1.jpg"
    path.write_bytes(path.read_bytes()[:-60])
    images = [encoded(kind="PNG") for _ in range(7)]
    write_parquet(
        tmp_path / "parquet" / "train.parquet", [0] * 8, images=[*images[:1], None, *images[1:]]
    )
    for folder, name in (("folders", "cat_1.jpg"), ("parquet", "train.parquet row 1")):
        source = open_images(tmp_path / folder, "train")
        with pytest.warns(UserWarning, match=name):
            train = training(source, batch_size=8, corrupt_limit=0.2)
        assert len(next(train.epoch(0)).images) == 8


def test_broken_images_do_not_move_the_others():
    with pytest.warns(UserWarning, match="image-3"):
        train = training(broken_set(3), augment=Augment(erase=0.5))
    fine = training(broken_set(), augment=Augment(erase=0.5))
    order = np.array(seen_in(training(broken_set()).epoch(0)))
    pairs = [
        torch.equal(a, b)
        for one, two in zip(train.epoch(0), fine.epoch(0), strict=True)
        for a, b in zip(one.images, two.images, strict=True)
    ]
    assert all(np.array(pairs)[order != 3])
