from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timm.data import create_transform
from torch.utils._python_dispatch import TorchDispatchMode

from pidformer.data import Augment, Batch, EvalImages, TrainImages, open_images
from pidformer.data.plan import BatchPlan
from pidformer.data.transforms import train_transform
from pidformer.errors import InputError
from tests.data.sets import memory_set, numbered_set

GREY = {"mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2)}
FULL = Augment(erase=0.5, mixup=0.8, cutmix=1.0, label_smoothing=0.1, repeats=2)
RAND = Augment(rand_augment="rand-m9-mstd0.5-inc1", erase=0.5, mixup=0.8, cutmix=1.0)


def loader(source=None, **options) -> TrainImages:
    options = {"image_size": 8, "batch_size": 8, "augment": FULL, **GREY, **options}
    return TrainImages(source or memory_set(), **options)


def same(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a.images, b.images) and torch.equal(a.targets, b.targets)
        for a, b in zip(first, second, strict=True)
    )


ways = pytest.mark.parametrize(
    ("augment", "resident"),
    [
        (FULL, True),
        (FULL, False),
        (RAND, False),
        (Augment(crop="padded"), True),
        (Augment(crop="none"), False),
    ],
    ids=["resident", "streamed", "rand-augment", "padded", "none"],
)


# --- the same batches however they are run


@ways
def test_resumed_epoch_is_the_tail_of_the_whole(augment, resident):
    whole = list(loader(augment=augment, resident=resident).epoch(3))
    assert len(whole) == 3
    for start in range(4):
        resumed = loader(augment=augment, resident=resident).epoch(3, start_step=start)
        assert same(list(resumed), whole[start:])


@ways
@pytest.mark.parametrize("world_size", [2, 4])
def test_processes_share_the_batches_of_one(augment, resident, world_size):
    whole = list(loader(augment=augment, resident=resident).epoch(1))
    parts = [
        list(loader(augment=augment, resident=resident, rank=r, world_size=world_size).epoch(1))
        for r in range(world_size)
    ]
    joined = [
        Batch(torch.cat([b.images for b in step]), torch.cat([b.targets for b in step]))
        for step in zip(*parts, strict=True)
    ]
    assert same(joined, whole)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 1000),
    start=st.integers(0, 3),
    world_size=st.sampled_from([1, 2]),
    resident=st.booleans(),
)
def test_a_batch_depends_on_its_place_alone(seed, epoch, start, world_size, resident):
    whole = list(loader(seed=seed, resident=resident).epoch(epoch))
    train = loader(seed=seed, resident=resident, world_size=world_size, rank=world_size - 1)
    local = 8 // world_size
    tail = [Batch(b.images[-local:], b.targets[-local:]) for b in whole[start:]]
    assert same(list(train.epoch(epoch, start)), tail)
    assert same(list(train.epoch(epoch, start)), tail)


@pytest.mark.parametrize("augment", [FULL, RAND], ids=["plain", "rand-augment"])
def test_workers_do_not_change_batches(augment):
    alone = loader(augment=augment, resident=False)
    helped = loader(augment=augment, resident=False, num_workers=2)
    assert same(list(alone.epoch(0)), list(helped.epoch(0)))


def test_epochs_and_seeds_differ():
    train = loader()
    assert not same(list(train.epoch(0)), list(train.epoch(1)))
    assert not same(list(train.epoch(0)), list(loader(seed=1).epoch(0)))


@pytest.mark.parametrize("resident", [True, False])
def test_callers_generators_are_left_alone(resident):
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    list(loader(augment=FULL if resident else RAND, resident=resident).epoch(0))
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


# --- what the batches hold


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


def test_streaming_pipeline_is_timms():
    found = train_transform(RAND, 32, (0.5, 0.4, 0.3))
    theirs = create_transform(
        32,
        is_training=True,
        color_jitter=None,
        auto_augment=RAND.rand_augment,
        interpolation="bicubic",
        mean=(0.5, 0.4, 0.3),
        normalize=False,
    )
    ours, expected = found.transforms, theirs.transforms[:-1]
    assert [repr(step) for step in ours] == [repr(step) for step in expected]
    for op, other in zip(ours[2].ops, expected[2].ops, strict=True):
        assert (op.kwargs, op.hparams) == (other.kwargs, other.hparams)


def test_full_magnitude_of_rand_augment_is_not_an_error():
    train = loader(augment=Augment(rand_augment="rand-m10-p1-inc1"), resident=False)
    assert len(list(train.epoch(0))) == 3


# --- resident or streamed


def test_auto_streams_what_would_lose_detail():
    assert loader(memory_set(size=(8, 8))).is_resident
    assert loader(memory_set(size=(9, 8))).is_resident
    assert not loader(memory_set(size=(10, 8))).is_resident
    assert loader(memory_set(size=(10, 8)), augment=Augment(crop="none")).is_resident
    assert loader(memory_set(size=(40, 40)), resident=True).is_resident
    assert not loader(augment=RAND).is_resident


def test_auto_streams_what_does_not_fit(monkeypatch):
    monkeypatch.setattr("pidformer.data.storage.MAX_BYTES", 24 * 3 * 64 - 1)
    assert not loader(memory_set()).is_resident
    assert not EvalImages(memory_set(), image_size=8, batch_size=4).is_resident


class Recorder(TorchDispatchMode):
    """Names of the operations that run."""

    def __init__(self):
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("crop", ["resized", "padded", "none"])
def test_resident_steps_use_no_operation_that_waits_for_the_device(crop):
    augment = Augment(crop=crop, erase=0.9, mixup=0.8, cutmix=1.0, label_smoothing=0.1)
    batches = loader(augment=augment, resident=True).epoch(0)
    with Recorder() as recorder:
        assert len(list(batches)) == 3
    assert "index_copy_" in recorder.names
    waiting = {"_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero"}
    assert not recorder.names & waiting


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


# --- evaluation


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
    assert seen == [list(range(0, 11, 2)), list(range(1, 11, 2))]
    assert [len(ldr) for ldr in loaders] == [2, 2]


def test_evaluation_is_the_same_both_ways():
    source = memory_set(size=(13, 17))
    ways = [EvalImages(source, image_size=8, batch_size=5, resident=r) for r in (True, False)]
    assert same(list(ways[0]), list(ways[1]))


# --- bad input


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


def test_repeats_need_not_divide_the_batch():
    plan = BatchPlan(
        images=5000, batch_size=1024, repeats=3, seed=0, rank=0, world_size=8, is_mixing=True
    )
    for batch in plan.order(0):
        copies = np.unique(batch, return_counts=True)[1]
        assert len(batch) == 1024 and len(copies) == 342 and set(copies) == {2, 3}
        assert (batch[::2] != batch[1::2]).all()  # neighbours, which Mixup pairs, differ
