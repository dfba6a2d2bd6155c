from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pidformer.data import Batch, open_images
from pidformer.data.cache import cache_images
from pidformer.data.formats.indexed import index_images
from tests.data import sets
from tests.data.batches import FULL, RAND, loader, same, ways


@ways
def test_resumed_epoch_is_the_tail_of_the_whole(augment, resident):
    whole = list(loader(augment=augment, resident=resident).epoch(3))
    assert len(whole) == 3
    for start in range(4):
        resumed = loader(augment=augment, resident=resident).epoch(3, start_step=start)
        assert same(list(resumed), whole[start:])


@pytest.fixture(
    scope="module", params=["folders", "Parquet", "Arrow", "WebDataset", "index", "cache"]
)
def location(request, tmp_path_factory):
    """The same kinds of pictures on disk, in every layout."""
    root, labels = tmp_path_factory.mktemp("sets"), [n % 2 for n in range(12)]
    match request.param:
        case "folders":
            return sets.write_photos(root / "set", 12)
        case "Parquet":
            pictures = [sets.pictured(n) for n in range(12)]
            sets.write_parquet(root / "set" / "train.parquet", labels, images=pictures)
        case "Arrow":
            sets.write_arrow(root / "set", {"train": labels})
        case "WebDataset":
            sets.write_tars(root / "set", {"train": labels})
        case "index":
            tars = sets.write_tars(root / "tars", {"train": labels})
            index_images(tars.as_uri(), root / "set")
        case "cache":
            cache_images(sets.write_photos(root / "photos", 12), root / "set", size=16)
    return root / "set"


@pytest.mark.parametrize(("augment", "resident"), [(FULL, True), (FULL, False), (RAND, False)])
def test_every_layout_resumes_in_the_middle_of_an_epoch(location, augment, resident):
    options = {"augment": augment, "resident": resident, "batch_size": 4}
    whole = list(loader(open_images(location, "train"), **options).epoch(2))
    assert len(whole) == 3 and not same(whole[:1], whole[1:2])
    helped = loader(open_images(location, "train"), **options, num_workers=2)
    assert same(list(helped.epoch(2, start_step=1)), whole[1:])
    part = loader(open_images(location, "train"), **options, rank=1, world_size=2).epoch(2, 2)
    assert same(list(part), [Batch(b.images[2:], b.targets[2:]) for b in whole[2:]])


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


@pytest.mark.slow
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


def test_more_workers_than_cores_are_not_started(monkeypatch, recwarn):
    monkeypatch.setattr("pidformer.data.loaders.usable_cores", lambda: 1)
    many = loader(augment=RAND, resident=False, num_workers=500)
    assert same(list(many.epoch(0)), list(loader(augment=RAND, resident=False).epoch(0)))
    assert not [w for w in recwarn if "worker" in str(w.message)]


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
