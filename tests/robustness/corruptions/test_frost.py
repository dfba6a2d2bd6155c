"""Frost against the published one: its photographs were measured, and are not in the repository."""

import io
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from pidformer.robustness.corruptions import Corruption
from pidformer.robustness.corruptions.weather import frost_textures
from tests.robustness.photographs import photographs

# Mean and standard deviation of frost1 ... frost5, in grey levels.
PHOTOGRAPHS = ((131, 43), (207, 23), (207, 23), (152, 31), (123, 44))
# What the published parameters do with them to 200 images of Tiny ImageNet's validation set (64 of
# them at 224 pixels): mean |difference| in grey levels at severities 1 to 5.
CHANGE = {
    224: (57.4, 69.1, 78.7, 72.6, 74.8),
    64: (46.0, 51.6, 49.0, 52.0, 53.9),
    32: (32.1, 44.8, 50.5, 45.7, 44.9),
}


def test_textures_are_as_bright_and_as_rough_as_the_photographs():
    for texture, (mean, std) in zip(255 * frost_textures(1.0), PHOTOGRAPHS, strict=True):
        assert float(texture.mean()) == pytest.approx(mean, abs=1.5)
        assert float(texture.std()) == pytest.approx(std, abs=2.5)


def likeness(images, corrupted):
    """The correlation of each image with what is left of it, averaged."""
    parts = [(x - x.mean((2, 3), keepdim=True)).flatten(1) for x in (images, corrupted)]
    return float(F.cosine_similarity(*parts).mean())


@pytest.mark.parametrize("size", [224, 64])  # at 32, (0.9, 0.4) and (0.85, 0.4) are too near
def test_each_severity_leaves_less_of_the_picture(size):
    images = photographs(40, size)
    left = [
        likeness(images, Corruption(name="frost", severity=s).corrupt(images)) for s in range(1, 6)
    ]
    assert all(left[k] > left[k + 1] for k in range(4)), left


@pytest.fixture(scope="module")
def validation():
    path = Path(os.environ.get("PIDFORMER_DATA", "absent")) / "tiny-imagenet-100/val.parquet"
    if not path.is_file():
        pytest.skip("set PIDFORMER_DATA to the folder that holds tiny-imagenet-100")
    table = parquet.read_table(path).slice(0, 200)
    (name,) = [c for c in table.column_names if c.startswith("im")]
    found = [row["bytes"] if isinstance(row, dict) else row for row in table[name].to_pylist()]
    arrays = [np.asarray(Image.open(io.BytesIO(raw)).convert("RGB")) for raw in found]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).float() / 255


@pytest.mark.parametrize("size", CHANGE)
def test_images_change_as_much_as_under_the_photographs(validation, size):
    images = validation[:64] if size == 224 else validation
    if size != 64:
        mode = "bilinear" if size == 224 else "area"
        images = F.interpolate(images, (size, size), mode=mode).clamp(0, 1)
    for severity, wanted in enumerate(CHANGE[size], start=1):
        corrupted = Corruption(name="frost", severity=severity).corrupt(images)
        change = 255 * float((corrupted - images).abs().mean())
        assert change == pytest.approx(wanted, rel=0.06), severity
    assert likeness(images, corrupted) < 0.97


def test_a_record_says_which_textures_it_was_measured_with():
    old = "Corruption(name='frost', severity=3, constants=None, jpeg_quality=None)"
    assert repr(Corruption(name="frost", severity=3)) == old[:-1] + ", textures=2)"
    assert repr(Corruption(name="fog", severity=3)) == old.replace("frost", "fog")
