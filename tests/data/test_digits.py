"""The digits that come with the package."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pidformer.data import open_images
from pidformer.data.digits import FILE, open_digits
from tests.data.sets import refused_images


def test_digits_are_split_evenly_and_without_overlap():
    train, val = open_images("digits", "train"), open_images(None, "val")
    assert (len(train), len(val)) == (1437, 360)
    assert not set(train.numbers) & set(val.numbers)
    assert torch.bincount(val.labels).tolist() == pytest.approx([36] * 10, abs=1)
    image = train.decode(0)
    assert (image.mode, image.size, train.channels) == ("L", (8, 8), 1)
    assert max(train.decode(i).getextrema()[1] for i in range(20)) == 255
    assert train.classes == tuple("0123456789")


def test_digits_have_two_splits():
    assert "known: train, val" in refused_images("digits", "test")


def test_they_are_scikit_learns_bit_for_bit():
    datasets = pytest.importorskip("sklearn.datasets")
    levels, labels = datasets.load_digits(return_X_y=True)
    with np.load(FILE, allow_pickle=False) as file:
        np.testing.assert_array_equal(file["levels"].reshape(-1, 64), levels)
        np.testing.assert_array_equal(file["labels"], labels)


def test_both_splits_together_are_all_of_them_once():
    train, val = open_digits("train"), open_digits("val")
    assert (len(train), len(val)) == (1437, 360)
    assert sorted([*train.numbers, *val.numbers]) == list(range(1797))
    assert train.images.dtype == np.uint8 and train.images.shape == (1437, 8, 8)
    assert (train.images.min(), train.images.max()) == (0, 255)
    assert val.labels.dtype == torch.int64 and set(val.labels.tolist()) == set(range(10))


def test_the_file_is_small_and_names_its_source():
    assert FILE.stat().st_size < 200_000
    assert "UCI" in FILE.with_suffix(".txt").read_text()
