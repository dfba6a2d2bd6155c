import numpy as np
import pytest
import torch

from pidformer.data import open_images, sample_images
from pidformer.errors import InputError


def test_a_sample_is_the_same_every_time_and_a_part_of_the_set():
    source = open_images("digits", "val")
    one, two = (sample_images(source, 50, 1, image_size=8) for _ in range(2))
    assert torch.equal(one.images, two.images) and one.images.shape == (50, 1, 8, 8)
    whole = sample_images(source, 1000, 1, image_size=8)
    assert len(whole.images) == len(source)
    known = {np.asarray(source.decode(k)).tobytes(): int(source.labels[k]) for k in range(360)}
    for image, label in zip(one.images, one.targets, strict=True):
        levels = (image[0] * 255).round().to(torch.uint8).numpy()
        assert known[levels.tobytes()] == int(label)
    other = sample_images(source, 50, 2, image_size=8)
    assert not torch.equal(one.images, other.images)


def test_no_images_is_refused():
    with pytest.raises(InputError, match="at least 1"):
        sample_images(open_images("digits", "val"), 0, image_size=8)
