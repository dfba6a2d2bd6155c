import colorsys

import numpy as np
import torch

from pidformer.data.segmentation.windows import distort, to_hsv, to_rgb
from tests.data.pairs import choices


def levels(count: int = 3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, 3, 9, 11), generator=generator).float()


def test_hsv_is_colorsys_in_eight_bits():
    images = levels(1)
    hue, saturation, value = to_hsv(images)
    for y in range(9):
        for x in range(11):
            h, s, v = colorsys.rgb_to_hsv(*(images[0, :, y, x] / 255).tolist())
            distance = abs(float(hue[0, y, x]) - 180 * h)
            assert min(distance, 180 - distance) <= 0.51
            assert abs(float(saturation[0, y, x]) - 255 * s) <= 0.51
            assert float(value[0, y, x]) == round(255 * v)
            back = colorsys.hsv_to_rgb(
                float(hue[0, y, x]) / 180, float(saturation[0, y, x]) / 255, v
            )
            found = to_rgb(hue, saturation, value)[0, :, y, x]
            assert np.abs(found.numpy() - 255 * np.array(back)).max() <= 0.51


def test_hsv_of_grey_and_of_pure_colours():
    colours = torch.tensor(
        [[0, 0, 0], [77, 77, 77], [255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 0, 255]]
    ).float()
    hue, saturation, value = (plane[0, :, 0] for plane in to_hsv(colours.T[None, :, :, None]))
    assert hue.tolist() == [0, 0, 0, 60, 120, 150]
    assert saturation.tolist() == [0, 0, 255, 255, 255, 255]
    assert value.tolist() == [0, 77, 255, 255, 255, 255]


def test_colour_changes_by_their_definitions():
    images = levels()
    changed = {
        "brightness": (20.7, (images + np.float32(20.7)).clamp(0, 255).floor()),
        "early_contrast": (1.37, (images * np.float32(1.37)).clamp(0, 255).floor()),
        "late_contrast": (0.61, (images * np.float32(0.61)).clamp(0, 255).floor()),
    }
    for name, (value, expected) in changed.items():
        assert torch.equal(distort(images, choices(3, (9, 11), **{name: value})), expected)
    hue, saturation, value = to_hsv(images)
    turned = to_rgb((hue - 11) % 180, saturation, value)
    assert torch.equal(distort(images, choices(3, (9, 11), hue=-11)), turned)
    faded = to_rgb(hue, (saturation * np.float32(0.5)).floor(), value)
    assert torch.equal(distort(images, choices(3, (9, 11), saturation=0.5)), faded)
    assert torch.equal(distort(images, choices(3, (9, 11))), images)


def test_contrast_comes_before_or_after_the_others():
    images = levels()
    early = distort(images, choices(3, (9, 11), early_contrast=1.5, hue=9))
    late = distort(images, choices(3, (9, 11), late_contrast=1.5, hue=9))
    assert not torch.equal(early, late)
    first = distort(images, choices(3, (9, 11), early_contrast=1.5))
    assert torch.equal(early, distort(first, choices(3, (9, 11), hue=9)))
