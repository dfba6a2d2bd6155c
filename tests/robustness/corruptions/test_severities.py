"""The published constants."""

import hashlib
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from pidformer.errors import InputError
from pidformer.robustness.corruptions import (
    ALEXNET_ERROR,
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SEVERITIES,
)
from pidformer.robustness.corruptions.corruption import FROST_SCALE, SIZES, severity_constants

ALL = CORRUPTIONS + EXTRA_CORRUPTIONS


@pytest.fixture(scope="module")
def reference():
    folder = os.environ.get("PIDFORMER_REFERENCE")
    if not folder:
        pytest.skip("set PIDFORMER_REFERENCE to the folder of constants.json")
    return json.loads((Path(folder) / "constants.json").read_text())["imagenet_c"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ALL)
def test_every_number_is_the_published_one(reference, name, size):
    for severity in SEVERITIES:
        published = np.atleast_1d(reference["severities"][str(size)][name][severity - 1])
        ours = severity_constants(name, severity, size)
        ours.pop("texture_scale", None)
        values = list(ours.values())
        if name == "zoom_blur":
            largest, step = values
            values = np.arange(1, largest + step / 2, step)
        np.testing.assert_allclose(values, published, rtol=1e-12, atol=0)


def test_names_order_and_scores_are_the_published_ones(reference):
    assert reference["corruptions"] == list(CORRUPTIONS)
    assert reference["extra"] == list(EXTRA_CORRUPTIONS)
    assert reference["alexnet_mean_error"] == ALEXNET_ERROR
    assert {str(size): scale for size, scale in FROST_SCALE.items()}.items() <= reference[
        "frost_resize"
    ].items()


def test_no_constant_has_changed():
    table = [
        (name, size, severity, sorted(severity_constants(name, severity, size).items()))
        for name, size, severity in itertools.product(ALL, SIZES, SEVERITIES)
    ]
    text = json.dumps([table, ALEXNET_ERROR])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "180d24b4d737fab9"


def test_unknown_sizes_are_refused():
    with pytest.raises(InputError, match="224, 64 and 32 pixels, got constants=299"):
        severity_constants("fog", 1, 299)
