import numpy as np
import pytest
import torch

from pidformer.data import storage
from pidformer.data.text import (
    TextStreams,
)
from pidformer.errors import InputError


def test_streams_are_contiguous_and_targets_follow():
    tokens = np.arange(103, dtype=np.uint16)
    streams = TextStreams(tokens, batch_size=4, length=6)
    assert streams.steps_per_epoch == (103 // 4 - 1) // 6 == 4
    batches = list(streams.epoch(0))
    read = torch.cat([batch.inputs for batch in batches], dim=1)
    expected = torch.arange(4)[:, None] * 25 + torch.arange(24)
    assert torch.equal(read, expected)
    assert all(torch.equal(batch.targets, batch.inputs + 1) for batch in batches)
    later = list(streams.epoch(0, 2))
    assert [b.inputs[0, 0].item() for b in later] == [12, 18]


@pytest.mark.parametrize("resident", [True, False])
def test_batches_depend_on_seed_epoch_and_step_alone(resident):
    tokens = np.random.default_rng(0).integers(0, 9, 1000).astype(np.uint16)
    options = {"batch_size": 8, "length": 10, "seed": 3, "shift": True}
    whole = TextStreams(tokens, **options)
    parts = [
        TextStreams(tokens, **options, rank=r, world_size=2, resident=resident) for r in range(2)
    ]
    for epoch in range(3):
        halves = zip(*(part.epoch(epoch, 1) for part in parts), strict=True)
        for one, (a, b) in zip(list(whole.epoch(epoch))[1:], halves, strict=True):
            assert torch.equal(one.inputs, torch.cat([a.inputs, b.inputs]))
            assert torch.equal(one.targets, torch.cat([a.targets, b.targets]))
    begins = {tuple(next(whole.epoch(e)).inputs.flatten().tolist()) for e in range(6)}
    assert len(begins) > 2  # epochs are cut at other places


@pytest.mark.parametrize("stream", range(10, 26))
def test_every_shift_leaves_room_for_each_batch_and_no_more(stream):
    streams = TextStreams(np.arange(2 * stream), batch_size=2, length=5, shift=True)
    last = 4  # the largest shift
    fitting = [steps for steps in range(9) if last + 5 * steps + 1 <= stream]
    assert streams.steps_per_epoch == max(fitting)
    firsts = set()
    for epoch in range(60):
        batches = list(streams.epoch(epoch))
        assert all(batch.targets.shape == (2, 5) for batch in batches)
        firsts.add(batches[0].inputs[0, 0].item())
    assert firsts == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("world_size", [1, 2])
def test_tokens_are_kept_where_they_take_a_quarter_of_the_free_memory(monkeypatch, world_size):
    """4 bytes each, of the streams that this process reads; the same batches from the file."""
    tokens, batches = np.arange(1003, dtype=np.uint16), []
    for free in (4 * 4 * 1000 // world_size, 4 * 4 * 1000 // world_size - 1):
        monkeypatch.setattr(storage, "_free_memory", lambda _, free=free: free)
        streams = TextStreams(tokens, batch_size=4, length=6, world_size=world_size)
        batches.append((streams.is_resident, torch.stack([b.inputs for b in streams.epoch(0)])))
    (is_kept, kept), (is_read_kept, read) = batches
    assert is_kept is True and is_read_kept is False and torch.equal(kept, read)


def test_a_text_shorter_than_a_batch_is_refused():
    with pytest.raises(InputError, match=r"27 tokens is shorter than one batch: 4 streams x 6"):
        TextStreams(np.arange(27), batch_size=4, length=6)
    TextStreams(np.arange(28), batch_size=4, length=6)


@pytest.mark.parametrize("shift", [False, True])
def test_the_most_rare_words_of_any_batch_are_counted(shift):
    tokens = np.random.default_rng(0).zipf(1.3, 3000).clip(max=99).astype(np.uint16)
    streams = TextStreams(tokens, batch_size=5, length=8, shift=shift)
    batches = [batch.targets for epoch in range(200) for batch in streams.epoch(epoch)]
    for low, high in ((10, 40), (40, 100), (200, 300)):
        counts = [int(((t >= low) & (t < high)).sum()) for t in batches]
        most = streams.most_between(low, high)
        assert most >= max(counts) and (not shift or most == max(counts))
