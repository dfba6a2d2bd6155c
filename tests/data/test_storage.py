from __future__ import annotations

from pidformer.data import Augment, EvalImages
from tests.data.batches import RAND, loader
from tests.data.sets import memory_set


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
