import numpy as np
import pytest

from pidformer.data.segmentation import SegmentAugment
from pidformer.data.segmentation.augment import choose, uniform_numbers
from pidformer.errors import InputError


def test_choices_have_the_published_distribution():
    rng = np.random.default_rng(0)
    count = 20000
    sizes = np.tile([480, 640], (count, 1))
    found = choose(uniform_numbers(rng, count), sizes, SegmentAugment(), (2048, 512), 512)
    ratio = found.size[:, 0] / 512
    assert (
        ratio.min() >= 0.49 and ratio.max() <= 2.0 and ratio.mean() == pytest.approx(1.25, abs=0.01)
    )
    assert found.is_flipped.mean() == pytest.approx(0.5, abs=0.02)
    for values, off in (
        (found.brightness, found.brightness == 0),
        (found.hue, found.hue == 0),
        (found.saturation, np.isnan(found.saturation)),
    ):
        assert off.mean() == pytest.approx(0.5, abs=0.03) and len(values) == count
    either = (found.early_contrast != 1) | (found.late_contrast != 1)
    assert either.mean() == pytest.approx(0.5, abs=0.02)
    assert not ((found.early_contrast != 1) & (found.late_contrast != 1)).any()
    assert np.abs(found.brightness).max() <= 32 and np.nanmax(found.saturation) <= 1.5
    assert found.hue.min() == -18 and found.hue.max() == 17
    room = np.maximum(found.size - 512, 0)
    assert (found.corners >= 0).all() and (found.corners <= room[:, None]).all()
    assert (found.corners[:, 0] == room).any() and (found.corners[:, 3] == 0).any()


@pytest.mark.parametrize(
    "fields",
    [
        {"ratio": (2.0, 1.0)},
        {"ratio": (0, 1.0)},
        {"flip": 1.5},
        {"max_category": -1},
        {"brightness": 300},
        {"hue": 91},
    ],
)
def test_augmentation_is_checked(fields):
    with pytest.raises(InputError):
        SegmentAugment(**fields)
