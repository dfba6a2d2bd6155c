"""The training pipeline of pairs: each operation against a slow reading, and its laws."""

import colorsys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pidformer.data.plan import BatchPlan
from pidformer.data.segmentation import EvalSegments, SegmentAugment, TrainSegments
from pidformer.data.segmentation.augment import ATTEMPTS, Choices, choose, uniform_numbers
from pidformer.data.segmentation.geometry import rescaled
from pidformer.data.segmentation.photometric import distort, to_hsv, to_rgb
from pidformer.data.segmentation.windows import augmented
from pidformer.errors import InputError
from tests.data.pairs import MemoryPairs, memory_pairs, random_pairs

MEAN = (0.4, 0.5, 0.6)
PLAIN = SegmentAugment(photometric=False, flip=0.0, max_category=1.0)


def train(source=None, **options):
    fields = {
        "crop": 20,
        "scale": (64, 24),
        "batch_size": 4,
        "augment": SegmentAugment(),
        "mean": MEAN,
        "seed": 5,
    }
    return TrainSegments(source or memory_pairs(), **(fields | options))


def same(a, b) -> bool:
    return torch.equal(a.images, b.images) and torch.equal(a.targets, b.targets)


def choices(count: int, size, corner=(0, 0), flip=False, **colour) -> Choices:
    """Choices that are all alike."""
    corners = np.tile(np.array(corner), (count, ATTEMPTS + 1, 1))
    fields = {
        "brightness": 0.0,
        "early_contrast": 1.0,
        "late_contrast": 1.0,
        "saturation": np.nan,
        "hue": 0,
    } | colour
    arrays = {
        name: np.full(count, value, dtype=np.int64 if name == "hue" else np.float32)
        for name, value in fields.items()
    }
    return Choices(
        size=np.tile(np.array(size), (count, 1)),
        corners=corners,
        is_flipped=np.full(count, flip),
        **arrays,
    )


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


@given(height=st.integers(1, 900), width=st.integers(1, 900), ratio=st.floats(0.5, 2.0))
@settings(max_examples=100, deadline=None)
def test_resized_images_fit_and_keep_their_shape(height, width, ratio):
    h, w = rescaled(height, width, (2048, 512), ratio)
    assert max(h, w) <= 2048 * ratio + 1 and min(h, w) <= 512 * ratio + 1
    scale = min(2048 * ratio / max(height, width), 512 * ratio / min(height, width))
    assert abs(h - height * scale) <= 1 + height / min(height, width)
    assert abs(w - width * scale) <= 1 + width / min(height, width)


@pytest.mark.parametrize("workers", [0, 2])
def test_resident_and_streamed_batches_are_the_same(workers):
    kept, streamed = train(), train(resident=False, num_workers=workers)
    assert kept.is_resident and not streamed.is_resident
    for epoch in (0, 1):
        for a, b in zip(kept.epoch(epoch), streamed.epoch(epoch), strict=True):
            assert same(a, b)


def test_batches_are_a_function_of_epoch_and_step():
    data = train()
    whole = list(data.epoch(2))
    resumed = list(train().epoch(2, 1))
    assert len(whole) == data.steps_per_epoch == 3
    assert all(same(a, b) for a, b in zip(whole[1:], resumed, strict=True))
    assert not same(whole[0], next(iter(data.epoch(3))))
    assert not same(whole[0], next(iter(train(seed=6).epoch(2))))


@pytest.mark.parametrize("resident", [True, False])
def test_processes_share_the_batch_of_one(resident):
    whole = list(train(resident=resident).epoch(0))
    parts = [list(train(resident=resident, rank=r, world_size=2).epoch(0)) for r in (0, 1)]
    for batch, *halves in zip(whole, *parts, strict=True):
        joined = torch.cat([half.images for half in halves])
        assert torch.equal(batch.images, joined)


def test_the_last_batch_is_filled_with_the_epochs_first():
    plan = BatchPlan(
        images=11, batch_size=4, repeats=1, seed=0, rank=0, world_size=1, is_mixing=False,
        fills_last=True,
    )  # fmt: skip
    order = plan.order(3)
    assert order.shape == (3, 4) and set(order.ravel()) == set(range(11))
    assert order[2, 3] == order[0, 0]
    ade = BatchPlan(
        images=20210, batch_size=8, repeats=1, seed=0, rank=0, world_size=1, is_mixing=False,
        fills_last=True,
    )  # fmt: skip
    assert ade.steps_per_epoch == 2527 and 64 * ade.steps_per_epoch == 161_728


def test_padding_is_zero_after_normalisation_and_unlabelled():
    source = memory_pairs(sizes=((24, 32),))
    data = train(source, augment=SegmentAugment(ratio=(0.5, 0.9)), crop=26)
    batch = next(iter(data.epoch(0)))
    mean = torch.tensor(MEAN)[:, None, None]
    normalised = batch.images - mean
    is_pad = (normalised == 0).all(1)
    assert is_pad[:, -1].all() and is_pad.float().mean() > 0.1
    assert (batch.targets[is_pad] == 255).all()
    assert batch.targets.dtype == torch.int64 and batch.images.max() <= 1


def test_images_of_many_sizes_are_streamed():
    source = memory_pairs(sizes=((24, 32), (40, 20), (24, 24)))
    data = train(source)
    assert not data.is_resident
    assert next(iter(data.epoch(0))).images.shape == (4, 3, 20, 20)
    with pytest.raises(InputError, match="one size"):
        train(source, resident=True)


def test_a_size_that_the_probes_miss_is_found():
    pairs = random_pairs(40)
    pairs[1] = random_pairs(1, sizes=((30, 30),))[0]
    data = train(MemoryPairs(pairs))
    assert not data.is_resident
    assert len(list(data.epoch(0))) == 10


@pytest.mark.parametrize("resident", [True, False])
def test_broken_pairs_are_replaced_and_named(resident):
    source = memory_pairs(20, broken=(3,))
    with pytest.warns(UserWarning, match="1 unreadable"):
        batches = list(train(source, resident=resident, corrupt_limit=0.1).epoch(0))
    whole = MemoryPairs([source.pairs[4 if i == 3 else i] for i in range(20)])
    for a, b in zip(batches, train(whole).epoch(0), strict=True):
        assert same(a, b)
    with pytest.raises(InputError, match="cannot be read"):
        list(train(source, resident=resident).epoch(0))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_mask_among_streamed_pairs_is_one_line(workers):
    class Bad(MemoryPairs):
        def decode(self, index):
            if index == 13:
                raise InputError("pair-13: the mask holds label 9")
            return super().decode(index)

    source = Bad(random_pairs(40, sizes=((24, 32), (32, 24))))
    with pytest.raises(InputError) as caught:
        list(train(source, resident=False, num_workers=workers).epoch(0))
    assert str(caught.value) == "pair-13: the mask holds label 9"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"crop": 100}, "a crop of 100 pixels is larger than any image.* they are 64 x 48"),
        ({"batch_size": 12}, "larger than the training set"),
        ({"mean": (0.5,)}, "mean must have 3"),
        ({"resident": "yes"}, "resident"),
        ({"crop": 0}, "crop must be a whole number"),
    ],
)
def test_what_cannot_be_trained_gets_one_clear_line(options, words):
    with pytest.raises(InputError, match=words):
        train(**options)


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


@pytest.mark.parametrize("sizes", [((24, 32),), ((24, 32), (24, 32), (16, 20))])
@pytest.mark.parametrize("workers", [0, 1])
def test_evaluation_gives_every_pair_once_as_it_is(sizes, workers):
    source = memory_pairs(8, sizes=sizes, broken=(5,))
    options = {"batch_size": 3, "corrupt_limit": 0.2, "num_workers": workers}
    with pytest.warns(UserWarning, match="left out"):
        batches = list(EvalSegments(source, **options))
    seen = {}
    for images, masks, indices in batches:
        assert len(indices) <= 3
        for image, mask, index in zip(images, masks, indices, strict=True):
            seen[index] = (image * 255).round().byte().permute(1, 2, 0).numpy(), mask.numpy()
    assert sorted(seen) == [0, 1, 2, 3, 4, 6, 7]
    for index, (image, mask) in seen.items():
        assert np.array_equal(image, source.pairs[index][0])
        assert np.array_equal(mask, source.pairs[index][1])


def test_processes_and_limit_share_the_evaluation():
    source = memory_pairs(9)
    parts = [
        [
            i
            for batch in EvalSegments(source, batch_size=2, rank=r, world_size=2, limit=7)
            for i in batch.indices
        ]
        for r in (0, 1)
    ]
    assert parts == [[0, 2, 4, 6], [1, 3, 5]]
