from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import RandomResizedCropAndInterpolation
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as reference

from pidformer.data.crops import (
    crop_boxes,
    erase,
    erase_boxes,
    flip_left_right,
    padded_crop,
    resized_crop,
)

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def uint8_images(count: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, 3, height, width), generator=generator, dtype=torch.uint8)


@st.composite
def boxes_in(draw, height: int, width: int):
    h, w = draw(st.integers(1, height)), draw(st.integers(1, width))
    return draw(st.integers(0, height - h)), draw(st.integers(0, width - w)), h, w


@settings(max_examples=60, deadline=None)
@given(box=boxes_in(20, 26), size=st.sampled_from([5, 16, 31]))
def test_resized_crop_equals_pil(box, size):
    # Mid levels, where nothing is clipped: Pillow's versions differ in which pass comes first.
    images = uint8_images(2, 20, 26) // 2 + 64
    found = resized_crop(images, torch.tensor([(0, 0, 20, 26), box]), size)
    picture = Image.fromarray(images[1].permute(1, 2, 0).numpy())
    crop = reference.resized_crop(picture, *box, [size, size], InterpolationMode.BICUBIC)
    expected = reference.pil_to_tensor(crop)
    difference = (found[1].int() - expected.int()).abs()
    assert difference.max() <= 2


def test_resized_crop_is_anti_aliased():
    stripes = torch.zeros(1, 1, 64, 64, dtype=torch.uint8)
    stripes[..., ::2] = 255
    found = resized_crop(stripes, torch.tensor([[0, 0, 64, 64]]), 16)
    assert found.float().std() < 12


def test_whole_box_at_its_own_size_is_the_image():
    images = uint8_images(2, 16, 16)
    assert torch.equal(resized_crop(images, torch.tensor([[0, 0, 16, 16]] * 2), 16), images)


@pytest.mark.parametrize("size", [(40, 40), (30, 60), (64, 20)])
def test_crop_boxes_are_distributed_as_timms(size):
    rng, picture = np.random.default_rng(0), Image.new("L", (size[1], size[0]))
    random.seed(0)
    crop = RandomResizedCropAndInterpolation.get_params
    theirs = np.array([crop(picture, SCALE, RATIO) for _ in range(4000)])
    ours = crop_boxes(rng, 4000, *size, SCALE, RATIO)
    assert (ours[:, 0] + ours[:, 2] <= size[0]).all() and (ours[:, 1] + ours[:, 3] <= size[1]).all()
    assert (ours >= [0, 0, 1, 1]).all()
    # Means and spreads within about five standard errors.
    tolerance = 5 * theirs.std(axis=0) / 4000**0.5 * 1.5 + 0.05
    assert (abs(ours.mean(axis=0) - theirs.mean(axis=0)) < tolerance).all()
    assert (abs(ours.std(axis=0) - theirs.std(axis=0)) < tolerance).all()


def test_no_fitting_crop_is_the_central_one():
    boxes = crop_boxes(np.random.default_rng(0), 5, 10, 100, (0.9, 1.0), RATIO)
    assert boxes.tolist() == [[0, (100 - 13) // 2, 10, 13]] * 5


def test_tiny_images_can_be_cropped():
    boxes = crop_boxes(np.random.default_rng(0), 200, 2, 2, SCALE, RATIO)
    assert boxes[:, 2:].min() == 1
    assert resized_crop(uint8_images(200, 2, 2), torch.from_numpy(boxes), 3).shape[-1] == 3


@given(st.integers(0, 8), st.integers(0, 8))
def test_padded_crop_is_a_window_of_the_padded_image(top, left):
    images = uint8_images(2, 9, 7)
    corners = torch.tensor([[top, left], [4, 4]])
    found = padded_crop(images, corners, 4)
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    assert torch.equal(found[0], padded[0, :, top : top + 9, left : left + 7])
    assert torch.equal(found[1], images[1])
    assert found.dtype == torch.uint8


def test_flip_is_where_asked():
    images = uint8_images(3, 4, 5)
    found = flip_left_right(images, torch.tensor([True, False, True]))
    assert torch.equal(found, torch.stack([images[0].flip(-1), images[1], images[2].flip(-1)]))


def test_erase_boxes_are_distributed_as_timms():
    rows, ours = erase_boxes(np.random.default_rng(0), 8000, 32, 48, 0.25)
    assert len(rows) / 8000 == pytest.approx(0.25, abs=0.02)
    assert len(set(rows)) == len(rows) == len(ours)
    random.seed(0)
    eraser = RandomErasing(1.0, mode="const", device="cpu")
    theirs = []
    for _ in range(2000):
        y, x = np.nonzero(eraser(torch.ones(1, 32, 48))[0].numpy() == 0)
        theirs.append((y.min(), x.min(), np.ptp(y) + 1, np.ptp(x) + 1))
    tolerance = 5 * np.std(theirs, axis=0) / 2000**0.5 * 1.5
    assert (abs(ours.mean(axis=0) - np.mean(theirs, axis=0)) < tolerance).all()
    assert (abs(ours.std(axis=0) - np.std(theirs, axis=0)) < tolerance).all()


def test_erase_fills_the_box_with_noise_around_the_mean():
    mean, std = torch.tensor([0.2, 0.5, 0.8]), torch.tensor([0.1, 0.2, 0.3])
    images = torch.full((4, 3, 50, 60), 7.0)
    boxes = torch.tensor([[10, 5, 30, 40], [0, 0, 49, 59]])
    keys = torch.tensor([[1, 2], [3, 4]])
    found = erase(images.clone(), torch.tensor([1, 3]), boxes, keys, mean, std)
    is_erased = torch.zeros(4, 50, 60, dtype=torch.bool)
    is_erased[1, 10:40, 5:45] = True
    is_erased[3, :49, :59] = True
    assert torch.equal((found != 7).all(1), is_erased)
    assert torch.equal((found != 7).any(1), is_erased)
    for channel in range(3):
        values = found[:, channel][is_erased]
        assert values.mean().item() == pytest.approx(mean[channel].item(), abs=0.02)
        assert values.std().item() == pytest.approx(std[channel].item(), rel=0.05)
