"""Glass blur's copies, followed as links, against the sequential definition."""

import numpy as np
import pytest
import torch

from pidformer.robustness.corruptions.blur import copy_neighbours


@pytest.mark.parametrize("reach", [1, 2, 4])
@pytest.mark.parametrize("shape", [(16, 16), (13, 21)])
def test_links_equal_copies_one_after_another(reach, shape):
    generator = torch.Generator().manual_seed(reach)
    images = torch.rand(3, 3, *shape, generator=generator)
    offsets = torch.randint(-reach, reach, (3, 2, *shape), generator=generator)
    ours = copy_neighbours(images, offsets, reach)
    for image, offset, mine in zip(images.numpy(), offsets.numpy(), ours.numpy(), strict=True):
        image = image.copy()
        for row in range(shape[0] - reach, reach, -1):
            for column in range(shape[1] - reach, reach, -1):
                down, right = offset[:, row, column]
                image[:, row, column] = image[:, row + down, column + right]
        np.testing.assert_array_equal(mine, image)


def test_a_chain_through_all_pixels_is_followed_to_its_end():
    images = torch.arange(3.0 * 32 * 32).view(1, 3, 32, 32)
    offsets = torch.zeros(1, 2, 32, 32, dtype=torch.long)
    offsets[:, 1] = -1  # every pixel takes its left neighbour, which comes later
    shifted = copy_neighbours(images, offsets, 1)
    assert torch.equal(shifted[..., 2:31, 2:], images[..., 2:31, 1:-1])
    offsets[:, 1] = 1  # its right neighbour, which was there before: the first one spreads
    spread = copy_neighbours(images, offsets, 2)
    last = images[..., 3:31, 31:]
    assert torch.equal(spread[..., 3:31, 3:31], last.expand(-1, -1, -1, 28))
