from __future__ import annotations

from importlib.resources import files

import pytest

from pidformer.data.imagenet import imagenet_classes, subset_classes, subset_indices
from pidformer.errors import InputError


def test_the_class_lists_are_those_that_timm_carries():
    info = files("timm.data") / "_info"
    assert list(imagenet_classes()) == (info / "imagenet_synsets.txt").read_text().split()
    for letter in "ar":
        name, start = f"imagenet-{letter}", f"imagenet_{letter}"
        assert list(subset_classes(name)) == (info / f"{start}_synsets.txt").read_text().split()
        written = (info / f"{start}_indices.txt").read_text().split()
        assert list(subset_indices(name)) == [int(index) for index in written]


def test_imagenet_o_has_200_classes_in_order():
    indices = subset_indices("imagenet-o")
    assert len(indices) == 200 and list(indices) == sorted(set(indices))
    assert subset_classes("imagenet-o") == tuple(imagenet_classes()[k] for k in indices)
    assert subset_classes("imagenet-o")[:3] == ("n01443537", "n01704323", "n01770081")
    with pytest.raises(InputError, match="imagenet-a, imagenet-o, imagenet-r"):
        subset_classes("imagenet-v")
