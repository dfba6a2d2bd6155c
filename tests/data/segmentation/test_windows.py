import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pidformer.data.segmentation.augment import ATTEMPTS
from pidformer.data.segmentation.windows import augmented, chosen_corner
from tests.data.pairs import choices, random_pairs


def as_batch(pairs):
    images = torch.from_numpy(np.stack([image for image, _ in pairs])).permute(0, 3, 1, 2)
    return images.contiguous(), torch.from_numpy(np.stack([mask for _, mask in pairs]))


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(
    ("size", "corner"),
    [((24, 32), (0, 0)), ((31, 47), (9, 21)), ((13, 17), (0, 0)), ((48, 15), (20, 0))],
)
def test_a_window_is_cut_flipped_and_padded_from_the_resized_pair(size, corner, flip):
    images, masks = as_batch(random_pairs(3))
    crop = 20
    levels, labels = augmented(images, masks, choices(3, size, corner, flip), crop, 1.0)
    resized = F.interpolate(images.float(), size=size, mode="bilinear", align_corners=False)
    nearest = F.interpolate(masks[:, None].float(), size=size, mode="nearest")[:, 0]
    top, left = corner
    cut = resized[..., top : top + crop, left : left + crop]
    cut_labels = nearest[..., top : top + crop, left : left + crop]
    if flip:
        cut, cut_labels = cut.flip(-1), cut_labels.flip(-1)
    height, width = cut.shape[-2:]
    assert (levels[..., :height, :width].float() - cut).abs().max() <= 0.5 + 1e-3
    assert torch.equal(labels[:, :height, :width].float(), cut_labels)
    assert (labels[:, height:] == 255).all() and (labels[:, :, width:] == 255).all()


def test_a_window_ruled_by_one_class_is_drawn_again():
    """Left half one class, right half stripes: windows on the left are refused."""
    mask = np.zeros((20, 60), dtype=np.uint8)
    mask[:, 40:] = np.arange(20) % 2
    image = np.zeros((20, 60, 3), dtype=np.uint8)
    images, masks = as_batch([(image, mask)])
    chosen = choices(1, (20, 60))
    for good in (0, 3, ATTEMPTS - 1, ATTEMPTS):
        corners = np.zeros((1, ATTEMPTS + 1, 2), dtype=np.int64)
        corners[0, good, 1] = 40
        labels = augmented(images, masks, chosen._replace(corners=corners), 20, 0.75)[1]
        assert (labels == 1).any()  # also the eleventh, which is not looked at
    none = augmented(images, masks, chosen, 20, 0.75)[1]
    assert (none == 0).all()
    first = np.zeros((1, ATTEMPTS + 1, 2), dtype=np.int64)
    first[0, 1, 1] = 40
    assert (augmented(images, masks, chosen._replace(corners=first), 20, 1.0)[1] == 0).all()


def test_windows_tried_together_are_chosen_as_one_after_the_other():
    rng = np.random.default_rng(3)
    blocks = rng.integers(0, 2, (40, 6, 6), dtype=np.uint8)  # one class or two in most windows
    masks = torch.from_numpy(blocks.repeat(6, 1).repeat(6, 2))
    size = torch.from_numpy(rng.integers(40, 72, (40, 2)))
    corners = torch.from_numpy(rng.integers(0, 23, (40, ATTEMPTS + 1, 2)))
    one, *others = (chosen_corner(masks, size, corners, 18, 0.6, n) for n in (1, 4, ATTEMPTS))
    place = (corners == one[:, None]).all(2).int().argmax(1)
    assert len(place.unique()) > 3 and all(torch.equal(one, other) for other in others)


def test_unlabelled_pixels_do_not_count_for_the_rule():
    mask = np.full((20, 40), 255, dtype=np.uint8)
    mask[:, :20] = 0
    mask[:4, :20] = 1  # 80 % of class 0 among the labelled
    mask[:8, 20:] = 1
    mask[8:16, 20:] = 2  # half and half, the rest unlabelled
    images, masks = as_batch([(np.zeros((20, 40, 3), dtype=np.uint8), mask)])
    corners = np.zeros((1, ATTEMPTS + 1, 2), dtype=np.int64)
    corners[0, 1, 1] = 20
    labels = augmented(images, masks, choices(1, (20, 40))._replace(corners=corners), 20, 0.75)[1]
    assert (labels == 2).any()
