from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from timm.data import create_transform
from torchvision import transforms

from pidformer.data.pictures import (
    UnreadableImage,
    fit,
    fit_for_evaluation,
    pixels,
    read_picture,
    to_rgb,
)
from tests.data.sets import encoded


def through_png(image: Image.Image, **options) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return read_picture(buffer.getvalue())


def test_sixteen_bit_grey_keeps_its_range():
    levels = np.array([[0, 257 * 7, 32768, 65535]], dtype=np.uint16)
    image = through_png(Image.fromarray(levels))
    assert np.asarray(image)[0, :, 0].tolist() == [0, 7, 128, 255]


def test_transparent_pixels_are_white():
    grey = Image.new("LA", (2, 1), (10, 0))
    grey.putpixel((1, 0), (10, 255))
    assert list(np.asarray(through_png(grey))[0, :, 0]) == [255, 10]
    palette = Image.new("P", (2, 1))
    palette.putpalette([200, 0, 0, 0, 200, 0])
    palette.putpixel((1, 0), 1)
    image = through_png(palette, transparency=bytes([0, 255]))
    assert [image.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (0, 200, 0)]
    keyed = through_png(Image.new("RGB", (1, 1), (5, 6, 7)), transparency=(5, 6, 7))
    assert keyed.getpixel((0, 0)) == (255, 255, 255)
    deep = through_png(Image.fromarray(np.array([[0, 514]], np.uint16)), transparency=0)
    assert np.asarray(deep)[0, :, 0].tolist() == [255, 2]


def test_floats_are_refused(tmp_path):
    """Pillow cuts them to whole levels: a picture in [0, 1] was black."""
    Image.new("F", (2, 2), 0.5).save(tmp_path / "a.tif")
    with pytest.raises(UnreadableImage, match=r"^its pixels are floats"):
        read_picture(tmp_path / "a.tif")


def test_cmyk_becomes_rgb():
    buffer = io.BytesIO()
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(buffer, "JPEG", quality=100)
    red, green, blue = read_picture(buffer.getvalue()).getpixel((4, 4))
    assert red > 250 and green < 5 and blue < 5


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I"])
def test_every_mode_becomes_rgb(mode):
    image = to_rgb(Image.new(mode, (3, 2)))
    assert (image.mode, image.size) == ("RGB", (3, 2))


@pytest.mark.parametrize(
    "data",
    [b"", b"not an image", encoded()[:-60], encoded(kind="PNG")[:48], encoded()[:20]],
    ids=["empty", "text", "truncated JPEG", "truncated PNG", "JPEG header"],
)
def test_broken_bytes_are_unreadable(data, tmp_path):
    with pytest.raises(UnreadableImage):
        read_picture(data)
    (tmp_path / "a.jpg").write_bytes(data)
    with pytest.raises(UnreadableImage):
        read_picture(tmp_path / "a.jpg")


def test_missing_file_is_unreadable(tmp_path):
    with pytest.raises(UnreadableImage, match="FileNotFoundError"):
        read_picture(tmp_path / "absent.jpg")


def noise_image(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(width * 1000 + height)
    return Image.fromarray(rng.integers(256, size=(height, width, 3), dtype=np.uint8))


sides = st.integers(5, 70)


@given(sides, sides)
def test_evaluation_equals_resize_and_centre_crop(width, height):
    image = noise_image(width, height)
    bicubic = transforms.InterpolationMode.BICUBIC
    reference = transforms.Compose(
        [transforms.Resize(32, interpolation=bicubic), transforms.CenterCrop(28)]
    )
    expected = image if image.size == (28, 28) else reference(image)
    np.testing.assert_array_equal(pixels(fit_for_evaluation(image, 28, 0.875)), pixels(expected))


@pytest.mark.parametrize(
    ("width", "height", "size"), [(196, 49, 224), (49, 343, 224), (412, 103, 224)]
)
def test_the_long_side_is_rounded_as_torchvision_has_it(width, height, size):
    """256 * 196 / 49 is 1024, and 196 * (256 / 49) is less in floating point."""
    image = noise_image(width, height)
    bicubic = transforms.InterpolationMode.BICUBIC
    reference = transforms.Compose(
        [transforms.Resize(256, interpolation=bicubic), transforms.CenterCrop(size)]
    )
    found = pixels(fit_for_evaluation(image, size, 0.875))
    np.testing.assert_array_equal(found, pixels(reference(image)))


@pytest.mark.parametrize(
    ("size", "kept"),
    [(224, 0.9), (224, 0.95), (224, 0.875), (48, 0.875), (384, 1.0), (224, 224 / 248)],
)
def test_evaluation_is_timms(size, kept):
    """Whose models were scored so: at 0.9 the short side becomes 248 of 248.9."""
    theirs = create_transform(size, crop_pct=kept, interpolation="bicubic", normalize=False)
    for width, height in ((500, 375), (333, 500)):
        image = noise_image(width, height)
        found = pixels(fit_for_evaluation(image, size, kept))
        np.testing.assert_array_equal(found, theirs(image).numpy())


def test_image_of_the_right_size_is_taken_as_it_is():
    image = noise_image(28, 28)
    assert fit_for_evaluation(image, 28, 0.875) is image
    assert fit(image, 28, 28) is image


@given(sides, sides, sides, sides)
def test_fit_gives_the_size(width, height, new_width, new_height):
    assert fit(noise_image(width, height), new_height, new_width).size == (new_width, new_height)


def test_pixels_have_channels_first():
    assert pixels(noise_image(5, 4)).shape == (3, 4, 5)
    assert pixels(noise_image(5, 4).convert("L")).shape == (1, 4, 5)
