import numpy as np
import pytest
import torch
from PIL import Image

from pidformer.errors import InputError
from pidformer.robustness.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    Corruption,
    corrupt,
)


def photograph(size, count=2):
    """Smooth enough to have something to blur, 8-bit, (B, H, W, 3)."""
    random = np.random.default_rng(0)
    coarse = torch.from_numpy(random.random((count, 3, 4, 4), dtype=np.float32))
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size + 6), mode="bilinear")
    return (smooth * 255).round().byte().permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("name", CORRUPTIONS + EXTRA_CORRUPTIONS)
def test_every_kind_of_batch_gets_the_same_pixels_at_32_and_64(name):
    for size in (32, 64):
        pixels = photograph(size)
        tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        wanted = Corruption(name=name, severity=4).corrupt(tensor / 255, seed=5) * 255
        wanted = wanted.round().byte()
        assert not torch.equal(wanted, tensor)
        assert torch.equal(corrupt(tensor, name, 4, seed=5), wanted)
        array = corrupt(pixels, name, 4, seed=5)
        assert array.dtype == np.uint8 and array.flags.c_contiguous
        np.testing.assert_array_equal(array, wanted.permute(0, 2, 3, 1))
        floats = corrupt(pixels.astype(np.float64) / 255, name, 4, seed=5)
        assert floats.dtype == np.float64
        np.testing.assert_allclose(floats * 255, array, atol=1e-3)
        alone = corrupt(pixels[1], name, 4, seed=5, indices=[1])
        np.testing.assert_array_equal(alone, array[1])
        np.testing.assert_array_equal(pixels, photograph(size))  # not changed in place


@pytest.mark.parametrize("name", ["fog", "glass_blur", "elastic_transform", "frost"])
@pytest.mark.parametrize("size", [96, 224, 512])
def test_larger_pictures_of_any_side_are_taken_and_the_seed_decides(name, size):
    pixels = photograph(size, 1)[0]
    first, again, other = (corrupt(pixels, name, 3, seed=seed) for seed in (0, 0, 1))
    assert first.shape == pixels.shape
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_a_picture_that_may_not_be_written_to_is_taken_without_a_warning(recwarn):
    """`np.asarray` of a Pillow image is one."""
    pixels = photograph(48)
    locked = np.asarray(Image.fromarray(pixels[0]))
    assert not locked.flags.writeable
    np.testing.assert_array_equal(corrupt(locked, "fog"), corrupt(pixels[0], "fog"))
    np.testing.assert_array_equal(
        corrupt(pixels[:, ::-1], "fog"), corrupt(pixels[:, ::-1].copy(), "fog")
    )
    assert not recwarn.list


def test_what_is_no_picture_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"NumPy array or a torch tensor, got list"):
        corrupt([[1, 2], [3, 4]], "fog")
    with pytest.raises(InputError, match=r"\(H, W, 3\) or \(B, H, W, 3\), got \(8, 8\)"):
        corrupt(np.zeros((8, 8), np.uint8), "fog")
    with pytest.raises(InputError, match="did you mean 'fog'"):
        corrupt(np.zeros((32, 32, 3), np.uint8), "fogg")
    with pytest.raises(InputError, match=r"in \[0, 1\]"):
        corrupt(np.full((32, 32, 3), 255.0, np.float32), "fog")
