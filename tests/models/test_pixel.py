"""PixelModel normalises inside."""

import pytest
import torch

from pidformer import InputError, PixelModel


def test_pixels_are_normalised_before_the_model(build, gains):
    model = build(gains=gains)
    pixels = torch.rand(2, 3, 16, 16)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = model(((pixels.movedim(1, -1) - mean) / std).movedim(-1, 1))
    torch.testing.assert_close(PixelModel(model)(pixels), expected)


def test_statistics_are_no_weights(build):
    model = build()
    pixel = PixelModel(model, mean=(0.5,) * 3, std=(0.25,) * 3)
    assert pixel.model is model
    assert set(pixel.state_dict()) == {f"model.{name}" for name in model.state_dict()}
    assert pixel.double().mean.dtype == torch.float64


def test_gradients_reach_the_pixels(build, gains):
    pixels = torch.rand(1, 3, 16, 16, requires_grad=True)
    PixelModel(build(gains=gains))(pixels).sum().backward()
    assert (pixels.grad != 0).any()


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), "divide integers by 255"),
        (torch.zeros(1, 1, 16, 16), r"images must be \(B, 3, height, width\)"),
    ],
)
def test_other_images_are_refused(build, images, message):
    with pytest.raises(InputError, match=message):
        PixelModel(build())(images)


@pytest.mark.parametrize("std", [(0.2, 0.2), (0.2, 0.2, 0.0)])
def test_bad_statistics_are_refused(build, std):
    with pytest.raises(InputError, match="one number per channel"):
        PixelModel(build(), std=std)
