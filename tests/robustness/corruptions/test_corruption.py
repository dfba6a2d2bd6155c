"""What holds for every corruption: range, determinism, independence of the batch, errors."""

import itertools

import pytest
import torch

from pidformer.errors import InputError
from pidformer.robustness.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SAVE_AS_JPEG85,
    SEVERITIES,
    Corruption,
)
from tests.robustness.photographs import photographs

ALL = CORRUPTIONS + EXTRA_CORRUPTIONS
STILL = {
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
}
# Where a severity does strictly more of the same. Not: glass, elastic, frost and saturate, whose
# constants trade one parameter for another, and motion and snow, whose angle also matters.
GROWING = [
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "speckle_noise",
    "gaussian_blur",
]


def test_there_are_fifteen_and_four():
    assert len(CORRUPTIONS) == 15 and len(EXTRA_CORRUPTIONS) == 4 and len(set(ALL)) == 19


@pytest.mark.slow
@pytest.mark.parametrize("severity", [1, 5])
@pytest.mark.parametrize("name", ALL)
def test_gives_8_bit_images_that_differ(name, severity):
    images = photographs(2, 48)
    result = Corruption(name=name, severity=severity).corrupt(images)
    assert result.shape == images.shape and result.dtype == torch.float32
    assert result.min() >= 0 and result.max() <= 1
    assert torch.equal(result, (result * 255).round() / 255)
    assert not torch.equal(result, images)


@pytest.mark.parametrize("name", ALL)
def test_batch_size_does_not_matter(name):
    images, corruption = photographs(7, 64), Corruption(name=name, severity=4)
    indices = torch.arange(7) * 11 + 3
    whole = corruption.corrupt(images, seed=5, indices=indices)
    for size in (1, 3):
        parts = [
            corruption.corrupt(part, seed=5, indices=places)
            for part, places in zip(images.split(size), indices.split(size), strict=True)
        ]
        assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("name", ALL)
def test_depends_on_the_seed_and_the_index_exactly_when_random(name):
    image, corruption = photographs(1, 64), Corruption(name=name, severity=5)
    once = corruption.corrupt(image, seed=1, indices=[4])
    assert torch.equal(once, corruption.corrupt(image, seed=1, indices=[4]))
    assert torch.equal(corruption.corrupt(image), corruption.corrupt(image, seed=0, indices=[0]))
    for other in (
        corruption.corrupt(image, seed=2, indices=[4]),
        corruption.corrupt(image, seed=1, indices=[5]),
    ):
        assert torch.equal(once, other) == (name in STILL)


@pytest.mark.parametrize("constants", [224, 64, 32])
@pytest.mark.parametrize("name", GROWING)
def test_a_higher_severity_is_farther_from_the_image(name, constants):
    images = photographs(4, 64)
    distances = [
        (Corruption(name=name, severity=severity, constants=constants).corrupt(images) - images)
        .square()
        .mean()
        .item()
        for severity in SEVERITIES
    ]
    assert all(low < high for low, high in itertools.pairwise(distances))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", [(40, 56), (8, 8), (51, 33)])
def test_takes_any_shape(name, shape):
    images = photographs(2, 64)[..., : shape[0], : shape[1]]
    result = Corruption(name=name, severity=5).corrupt(images)
    assert result.shape == images.shape and result.isfinite().all()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
def test_flat_images_stay_finite(name, level):
    result = Corruption(name=name, severity=2).corrupt(torch.full((1, 3, 32, 32), level))
    assert result.isfinite().all() and result.min() >= 0 and result.max() <= 1


@pytest.mark.parametrize(
    ("size", "constants"), [(128, 224), (127, 64), (48, 64), (47, 32), (32, 32)]
)
def test_constants_follow_the_short_side(size, constants):
    images = torch.rand(1, 3, size, size + 5, generator=torch.Generator().manual_seed(0))
    chosen = Corruption(name="contrast", severity=1).corrupt(images)
    forced = Corruption(name="contrast", severity=1, constants=constants).corrupt(images)
    assert torch.equal(chosen, forced)


def test_published_files_are_saved_as_jpeg():
    images = photographs(1, 64)
    plain = Corruption(name="fog", severity=2).corrupt(images)
    saved = Corruption(name="fog", severity=2, jpeg_quality=SAVE_AS_JPEG85).corrupt(images)
    assert 0 < (plain - saved).abs().mean() < 0.03
    assert torch.equal(saved, (saved * 255).round() / 255)


def test_half_precision_and_views_are_read_as_their_8_bit_pixels():
    images = photographs(2, 48)
    turned = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    corruption = Corruption(name="shot_noise", severity=3)
    assert torch.equal(corruption.corrupt(images), corruption.corrupt(turned))
    assert torch.equal(corruption.corrupt(images), corruption.corrupt(images.half()))


def test_an_empty_batch_stays_empty():
    assert Corruption(name="fog").corrupt(torch.zeros(0, 3, 32, 32)).shape == (0, 3, 32, 32)


def test_a_corruption_is_a_value():
    assert Corruption(name="fog", severity=3) == Corruption(name="fog")
    assert len({Corruption(name="fog"), Corruption(name="fog", severity=3)}) == 1
    assert "fog" in repr(Corruption(name="fog"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "fogg"}, "did you mean 'fog'"),
        ({"name": "fog", "severity": 6}, "severity must be 1, 2, 3, 4 or 5, got 6"),
        ({"name": "fog", "constants": 299}, "constants must be 224, 64, 32 or None, got 299"),
        ({"name": "fog", "jpeg_quality": 0}, "jpeg_quality must be in 1 ... 100"),
        ({"name": "fog", "severity": 2.0}, "severity must be 1, 2, 3, 4 or 5, got 2.0"),
        ({"name": "fog", "severity": True}, "severity must be 1, 2, 3, 4 or 5, got True"),
        ({"name": "fog", "constants": 32.0}, "constants must be 224, 64, 32 or None, got 32.0"),
        ({"name": "fog", "jpeg_quality": 85.0}, "jpeg_quality must be in 1 ... 100, got 85.0"),
        ({"name": "fog", "jpeg_quality": "85"}, "jpeg_quality must be in 1 ... 100, got '85'"),
    ],
)
def test_bad_corruptions_are_refused(arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        Corruption(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "divide by 255"),
        ([0.5], "float tensor"),
        (torch.zeros(3, 32, 32), "add a batch dimension"),
        (torch.zeros(1, 1, 32, 32), "grey channel"),
        (torch.zeros(1, 3, 4, 32), "at least 8 pixels"),
        (torch.full((1, 3, 32, 32), 1.5), "leave them as pixels"),
        (torch.full((1, 3, 32, 32), float("nan")), r"in \[0, 1\]"),
    ],
)
def test_bad_images_are_refused_with_the_fix(images, message):
    with pytest.raises(InputError, match=message) as caught:
        Corruption(name="fog").corrupt(images)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"indices": [1, 2, 3]}, "indices must be 2 whole numbers"),
        ({"indices": [0.5, 1.5]}, "indices must be 2 whole numbers"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"seed": 0.5}, "seed must be a whole number"),
    ],
)
def test_bad_places_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Corruption(name="fog").corrupt(torch.zeros(2, 3, 32, 32), **options)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ALL)
def test_the_gpu_gives_the_same_images(name):
    images = photographs(3, 64)
    corruption = Corruption(name=name, severity=4)
    apart = (corruption.corrupt(images) - corruption.corrupt(images.cuda()).cpu()).abs() * 255
    assert (apart > 0.5).float().mean() < 1e-3
