from __future__ import annotations

import numpy as np
import pytest
import torch

from pidformer.data import Augment, EvalImages, TrainImages, open_images
from pidformer.errors import InputError
from tests.data.batches import FULL, RAND, loader, same
from tests.data.sets import memory_set, numbered_set
from tests.waits import Waits


def test_every_image_is_seen_once_an_epoch():
    train = loader(numbered_set(26), image_size=4, augment=Augment(crop="none", flip=0))
    batches = list(train.epoch(0))
    assert train.steps_per_epoch == len(batches) == 3
    seen = [round(255 * image[0, 0, 0].item()) for b in batches for image in b.images]
    assert len(set(seen)) == len(seen) == 24
    labels = [int(label) for b in batches for label in b.targets]
    assert labels == [number % 2 for number in seen]


@pytest.mark.parametrize("resident", [True, False])
def test_repeats_stand_apart_and_keep_the_epochs_length(resident):
    augment = Augment(crop="none", flip=0, repeats=3)
    train = loader(
        numbered_set(40), image_size=4, batch_size=12, augment=augment, resident=resident
    )
    batches = list(train.epoch(0))
    assert len(batches) == 40 // 12
    numbers = torch.stack([b.images[:, 0, 0, 0] for b in batches]).view(3, 3, 4)
    assert torch.equal(numbers[:, 0], numbers[:, 1]) and torch.equal(numbers[:, 0], numbers[:, 2])
    assert len(numbers.unique()) == 12


@pytest.mark.parametrize("crop", ["none", "padded"])
def test_both_ways_fit_images_alike(crop):
    augment = Augment(crop=crop, padding=0, flip=0)
    options = {"image_size": 12, "augment": augment}
    source = memory_set(size=(9, 14))
    resident = list(loader(source, resident=True, **options).epoch(0))
    assert same(resident, list(loader(source, resident=False, **options).epoch(0)))


def test_both_ways_share_erasing_and_mixing():
    augment = Augment(crop="none", flip=0, erase=0.7, mixup=1.0, cutmix=1.0, label_smoothing=0.1)
    resident = list(loader(augment=augment, resident=True).epoch(0))
    assert same(resident, list(loader(augment=augment, resident=False).epoch(0)))


@pytest.mark.slow
@pytest.mark.parametrize("augment", [Augment(), Augment(crop="padded", padding=3)])
def test_both_ways_have_one_distribution(augment):
    """The mean of each pixel of a slope, over many crops and flips, and its spread."""
    source = memory_set(count=64, size=(12, 12))
    slope = np.linspace(0, 255, 12).astype(np.uint8)
    source.images[:] = np.stack(np.broadcast_arrays(slope, slope[:, None], 255 - slope), -1)
    moments = []
    for resident in (True, False):
        options = {"image_size": 10, "batch_size": 64, "augment": augment, "resident": resident}
        train = loader(source, **options)
        images = torch.cat([b.images for epoch in range(20) for b in train.epoch(epoch)])
        moments.append(torch.cat([images.mean(0).flatten(), images.std(0).flatten()]))
    assert (moments[0] - moments[1]).abs().max() < 0.045  # five standard errors of 1280 samples


@pytest.mark.slow
def test_flip_probability():
    source = memory_set(count=200)
    source.images[:] = 0
    source.images[:, :, :4] = 255
    for resident in (True, False):
        augment = Augment(crop="none", flip=0.3)
        train = loader(source, batch_size=200, augment=augment, resident=resident)
        flipped = [b.images[:, 0, 0, 0] < 0.5 for e in range(10) for b in train.epoch(e)]
        assert torch.cat(flipped).float().mean().item() == pytest.approx(0.3, abs=0.05)


def test_targets_are_labels_unless_something_softens_them():
    batch = next(loader(augment=Augment()).epoch(0))
    assert batch.targets.dtype == torch.int64 and batch.targets.shape == (8,)
    assert batch.images.dtype == torch.float32
    assert batch.images.min() >= 0 and batch.images.max() <= 1
    smooth = next(loader(augment=Augment(label_smoothing=0.3)).epoch(0))
    assert smooth.targets.shape == (8, 3)
    assert smooth.targets.max().item() == pytest.approx(0.8)
    assert torch.equal(smooth.targets.argmax(1), batch.targets)


def test_digits_stay_grey():
    source = open_images("digits", "train")
    for augment in (FULL, Augment(rand_augment="rand-m9-mstd0.5-inc1")):
        train = TrainImages(
            source, image_size=8, batch_size=64, augment=augment, mean=(0.3,), std=(0.4,)
        )
        assert train.num_classes == 10 and train.is_resident == (augment is FULL)
        assert next(train.epoch(0)).images.shape == (64, 1, 8, 8)


@pytest.mark.parametrize("crop", ["resized", "padded", "none"])
def test_resident_steps_use_no_operation_that_waits_for_the_device(crop):
    augment = Augment(crop=crop, erase=0.9, mixup=0.8, cutmix=1.0, label_smoothing=0.1)
    batches = loader(augment=augment, resident=True).epoch(0)
    with Waits() as seen:
        assert len(list(batches)) == 3
    assert "index_copy_" in seen.names and not seen.waits


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_resident_steps_on_cuda_do_not_wait_and_equal_the_cpus():
    augment = Augment(erase=0.9, mixup=0.8, cutmix=1.0, label_smoothing=0.1)
    train = loader(augment=augment, resident=True, device="cuda")
    expected = list(loader(augment=augment, resident=True).epoch(0))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = list(train.epoch(0))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.images.cpu(), theirs.images, atol=2 / 255, rtol=0)
        torch.testing.assert_close(ours.targets.cpu(), theirs.targets)


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_evaluation_keeps_order_and_the_rest(resident, num_workers):
    options = {"image_size": 4, "resident": resident, "num_workers": num_workers}
    loader = EvalImages(numbered_set(11), batch_size=4, **options)
    batches = list(loader)
    assert len(loader) == len(batches) == 3
    assert [len(batch.targets) for batch in batches] == [4, 4, 3]
    images = torch.cat([batch.images for batch in batches])
    assert torch.equal(images[:, 0, 0, 0] * 255, torch.arange(11.0))
    assert torch.cat([batch.targets for batch in batches]).tolist() == [n % 2 for n in range(11)]


def test_evaluation_is_shared_by_processes():
    loaders = [
        EvalImages(numbered_set(11), image_size=4, batch_size=3, rank=r, world_size=2)
        for r in (0, 1)
    ]
    seen = [(torch.cat([b.images for b in ldr])[:, 0, 0, 0] * 255).tolist() for ldr in loaders]
    assert seen == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10]]
    assert [len(ldr) for ldr in loaders] == [2, 2]
    assert [[place for place, _ in ldr.placed()] for ldr in loaders] == [[0, 6], [3, 9]]


def test_evaluation_is_the_same_both_ways():
    source = memory_set(size=(13, 17))
    ways = [EvalImages(source, image_size=8, batch_size=5, resident=r) for r in (True, False)]
    assert same(list(ways[0]), list(ways[1]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 25}, "larger than the training set of 24"),
        ({"batch_size": 0}, "batch_size must be a whole number >= 1"),
        ({"batch_size": 9, "world_size": 2}, "multiple of world_size"),
        ({"batch_size": 6, "world_size": 2}, "even batch, got 6 / 2 = 3"),
        ({"augment": Augment(repeats=8)}, "two or more images"),
        ({"rank": 2, "world_size": 2}, "rank must be below world_size 2"),
        ({"seed": -1}, "seed must be a whole number >= 0"),
        ({"image_size": 2.5}, "image_size must be"),
        ({"num_workers": -1}, "num_workers must be"),
        ({"mean": (0.5,)}, "mean must have 3 value"),
        ({"std": (0.5,)}, "std must have 3 value"),
        ({"augment": RAND, "resident": True}, "streamed images only"),
        ({"resident": "maybe"}, "resident must be"),
        ({"corrupt_limit": 2}, "corrupt_limit must be"),
        ({"device": "gpu"}, "device must be auto, cpu or cuda"),
    ],
)
def test_bad_training_option_is_one_line(options, message):
    with pytest.raises(InputError, match=message) as caught:
        loader(**options)
    assert "\n" not in str(caught.value)


def test_start_step_must_be_in_the_epoch():
    with pytest.raises(InputError, match="at most the 3 steps"):
        loader().epoch(0, start_step=4)
    with pytest.raises(InputError, match="epoch must be"):
        loader().epoch(-1)


def test_images_without_a_class_cannot_be_trained_on():
    source = memory_set()
    source.labels[3] = -1
    with pytest.raises(InputError, match="1 images without a class"):
        loader(source)
    assert [b.targets[3].item() for b in EvalImages(source, image_size=8, batch_size=24)] == [-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop_ratio": 0}, "crop_ratio must be in"),
        ({"crop_ratio": "all"}, "crop_ratio must be in"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"rank": 1}, "rank must be below"),
        ({"resident": None}, "resident must be"),
    ],
)
def test_bad_evaluation_option_is_one_line(options, message):
    with pytest.raises(InputError, match=message) as caught:
        EvalImages(memory_set(), **{"image_size": 8, "batch_size": 4, **options})
    assert "\n" not in str(caught.value)
