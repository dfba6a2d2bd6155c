import numpy as np
import pytest
import torch

from pidformer.data.randomness import Purpose
from pidformer.data.segmentation import EvalSegments, SegmentAugment, TrainSegments
from pidformer.errors import InputError
from tests.data.pairs import MemoryPairs, memory_pairs, random_pairs

MEAN = (0.4, 0.5, 0.6)


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


@pytest.mark.slow
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
    source, options = memory_pairs(9), {"batch_size": 2, "world_size": 2, "limit": 7, "seed": 1}
    parts = [
        [i for batch in EvalSegments(source, rank=r, **options) for i in batch.indices]
        for r in (0, 1)
    ]
    drawn = sorted(
        np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(1, spawn_key=(int(Purpose.LIMIT),)))
        )
        .permutation(9)[:7]
        .tolist()
    )
    assert parts == [drawn[::2], drawn[1::2]] and drawn != list(range(7))
