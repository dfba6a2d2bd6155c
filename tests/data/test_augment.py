from __future__ import annotations

import pytest

from pidformer.data import Augment
from pidformer.errors import InputError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"crop": "resize"}, "did you mean 'resized'"),
        ({"scale": (0.5, 0.1)}, "0 < low <= high <= 1"),
        ({"scale": (0.5, 1.5)}, "0 < low <= high <= 1"),
        ({"scale": 0.5}, "two numbers"),
        ({"ratio": (0, 1)}, "0 < low <= high"),
        ({"ratio": ("a", "b")}, "two numbers"),
        ({"flip": 1.5}, r"flip must be a number in \[0, 1\], got 1.5"),
        ({"flip": "half"}, "got 'half'"),
        ({"erase": -0.1}, "erase must be"),
        ({"mixup": -1}, "mixup must be a number 0 or more"),
        ({"mixup": True}, "mixup must be a number"),
        ({"cutmix": float("nan")}, "cutmix must be"),
        ({"cutmix": float("inf")}, "cutmix must be"),
        ({"mix_prob": 2}, "mix_prob must be"),
        ({"switch_prob": None}, "switch_prob must be"),
        ({"label_smoothing": 1.0}, "below 1"),
        ({"padding": -1}, "whole number >= 0"),
        ({"repeats": 0}, "whole number >= 1"),
        ({"repeats": 2.0}, "whole number >= 1"),
        ({"rand_augment": "m9"}, "rand-m9-mstd0.5-inc1"),
        ({"rand_augment": "rand-x9"}, "rand-m9-mstd0.5-inc1"),
        ({"rand_augment": 9}, "rand-m9-mstd0.5-inc1"),
    ],
)
def test_bad_field_is_one_line(fields, message):
    with pytest.raises(InputError, match=message) as caught:
        Augment(**fields)
    assert "\n" not in str(caught.value)


def test_lists_from_a_recipe_become_tuples():
    assert Augment(scale=[0.2, 1]) == Augment(scale=(0.2, 1))


@pytest.mark.parametrize("text", ["rand", "rand-m9-mstd0.5-inc1", "rand-m7-n3-p0.7-t3a-mmax10"])
def test_timm_strings_are_accepted(text):
    assert Augment(rand_augment=text).rand_augment == text


@pytest.mark.parametrize(
    ("fields", "is_mixing", "is_soft"),
    [
        ({}, False, False),
        ({"mixup": 0.8}, True, True),
        ({"cutmix": 1.0}, True, True),
        ({"cutmix": 1.0, "mix_prob": 0.0}, False, False),
        ({"label_smoothing": 0.1}, False, True),
    ],
)
def test_what_makes_targets_soft(fields, is_mixing, is_soft):
    augment = Augment(**fields)
    assert (augment.is_mixing, augment.has_soft_targets) == (is_mixing, is_soft)
