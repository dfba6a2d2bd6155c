"""Each corruption against a reading of its definition in NumPy, given the same random numbers."""

import numpy as np
import pytest
import torch

from pidformer.robustness.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, Corruption
from pidformer.robustness.corruptions.corruption import severity_constants
from pidformer.robustness.corruptions.filters import RandomFields
from pidformer.robustness.corruptions.weather import frost_textures
from tests.robustness import reading
from tests.robustness.photographs import photographs

# Drawn otherwise than NumPy draws them; their laws are tested in test_noise.
BY_LAW = {"shot_noise", "impulse_noise"}
EQUAL = [name for name in CORRUPTIONS + EXTRA_CORRUPTIONS if name not in BY_LAW]


def grey_levels_apart(name, severity, size, constants, count=2):
    images = photographs(count, size)
    indices = [5, 12][:count]
    ours = Corruption(name=name, severity=severity, constants=constants).corrupt(
        images, seed=3, indices=indices
    )
    values = severity_constants(name, severity, constants)
    draws = RandomFields(3, name, severity, torch.tensor(indices))
    more = {}
    if name == "frost":
        more["textures"] = frost_textures(values["texture_scale"]).numpy()
    apart = []
    for row, image in enumerate(images):
        pixels = image.permute(1, 2, 0).double().mul(255).round().div(255).numpy()
        fields = reading.SameFields(draws, row)
        theirs = reading.quantise(getattr(reading, name)(pixels, values, fields, **more))
        mine = ours[row].permute(1, 2, 0).mul(255).round().int().numpy()
        apart.append(np.abs(mine - theirs.astype(int)))
    return np.stack(apart)


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", EQUAL)
def test_equals_its_definition_at_64_pixels(name, severity):
    apart = grey_levels_apart(name, severity, 64, 64)
    assert apart.max() <= 1
    assert (apart > 0).mean() < 1e-3  # a sum that ends beside a whole level may fall either way


@pytest.mark.parametrize("name", EQUAL)
def test_equals_its_definition_with_the_constants_of_32_pixels(name):
    apart = grey_levels_apart(name, 4, 32, 32)
    assert apart.max() <= 1
    assert (apart > 0).mean() < 1e-3


@pytest.mark.parametrize("severity", [2, 5])
@pytest.mark.parametrize("name", EQUAL)
def test_equals_its_definition_with_the_constants_of_224_pixels(name, severity):
    apart = grey_levels_apart(name, severity, 160, 224, count=1)
    assert apart.max() <= 1
    assert (apart > 0).mean() < 1e-3
