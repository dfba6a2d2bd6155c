from __future__ import annotations

import pytest
import torch

from pidformer.data import open_images
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
