from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from pidformer.data import Augment, EvalImages, cache, open_images
from pidformer.data.cache import cache_images
from pidformer.data.check import check_data
from pidformer.data.formats.cached import FILE
from pidformer.data.formats.folders import FolderImages
from pidformer.data.pictures import UnreadableImage
from pidformer.data.views import relabel, sample
from pidformer.errors import InputError
from tests.data.batches import loader, same
from tests.data.sets import refused, refused_images, write_cifar, write_photos


@pytest.fixture
def photos(tmp_path) -> Path:
    return write_photos(tmp_path / "photos")


@pytest.fixture
def cached(photos, tmp_path) -> Path:
    cache_images(photos, tmp_path / "cache", size=16)
    return tmp_path / "cache"


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_order_labels_names_and_small_pictures_are_those_of_the_set(photos, cached):
    for split in ("train", "val"):
        whole, kept = open_images(photos, split), open_images(cached, split)
        assert kept.classes == whole.classes and kept.channels == 3
        assert torch.equal(kept.labels, whole.labels)
        names = range(len(whole))
        assert [kept.name(n) for n in names] == [whole.name(n) for n in names]
        for index in names:
            first, second = whole.decode(index), kept.decode(index)
            assert min(second.size) == min(16, *first.size)
            if min(first.size) <= 16:
                assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize(("image_size", "crop_ratio"), [(14, 0.875), (16, 1.0)])
def test_evaluation_at_the_size_of_the_cache_is_exact(photos, cached, image_size, crop_ratio):
    options = {"image_size": image_size, "crop_ratio": crop_ratio, "batch_size": 4}
    whole = EvalImages(open_images(photos, "val"), **options)
    kept = EvalImages(open_images(cached, "val"), **options)
    assert same(list(kept), list(whole))


def test_training_is_exact_where_nothing_was_shrunk(photos, tmp_path):
    cache_images(photos, tmp_path / "cache", size=30)
    kept = open_images(tmp_path / "cache", "train")
    assert kept.short_side is None  # whatever the size, no detail is lost
    for resident in (True, False):
        options = {"batch_size": 4, "augment": Augment(), "resident": resident, "image_size": 40}
        whole = loader(open_images(photos, "train"), **options)
        assert same(list(loader(kept, **options).epoch(1)), list(whole.epoch(1)))


def test_a_cache_that_is_too_small_is_refused_and_a_larger_one_warned_of(cached):
    source = open_images(cached, "val")
    line = "shrunk to a short side of 16, but 17 pixels are needed; make one with --size 17"
    for view in (source, sample(source, 3), relabel(source, ("dog", "cat", "hen"))):
        with pytest.raises(InputError, match=line):
            EvalImages(view, image_size=15, batch_size=4)
    with pytest.raises(InputError, match="but 17 pixels"):
        loader(source, image_size=17, batch_size=4)
    loader(source, image_size=16, batch_size=4)
    with pytest.warns(UserWarning, match="shrunk again to 9"):
        EvalImages(source, image_size=8, batch_size=4)


def test_the_check_says_what_a_fixed_size_costs(cached, photos, tmp_path):
    found = check_data(cached, sample=None)
    assert found.is_sound and found.layout == "image cache"
    assert "train: a cache, 2 of 6 images shrunk to a short side of 16" in found.notes[0]
    cache_images(photos, tmp_path / "all", size=64)
    assert "a cache of all pixels" in check_data(tmp_path / "all").notes[0]


def test_unreadable_images_stay_unreadable_at_their_place(photos, tmp_path):
    (photos / "train" / "cat" / "2.png").write_bytes(b"no picture")
    found = cache_images(photos, tmp_path / "cache", size=16)
    assert found["train"].unreadable == 1
    source = open_images(tmp_path / "cache", "train")
    with pytest.raises(UnreadableImage, match="when the cache was made"):
        source.decode(1)
    assert source.name(1) == "train/cat/2.png" and len(source) == 6


def test_a_stopped_cache_goes_on_and_ends_as_an_undisturbed_one(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "SHARD", 2)
    monkeypatch.setattr(cache, "BATCH", 1)
    cache_images(photos, tmp_path / "whole", size=16)
    decode, seen = FolderImages.decode, []

    def stop(self, index):
        seen.append(index)
        if len(seen) == stop_at:
            raise KeyboardInterrupt
        return decode(self, index)

    monkeypatch.setattr(cache, "_check_room", lambda *_: None)  # decodes a few, too
    monkeypatch.setattr(FolderImages, "decode", stop)
    out, stop_at = tmp_path / "out", 4
    with pytest.raises(KeyboardInterrupt):
        cache_images(photos, out, size=16)
    assert set(shards(out)) == {FILE, "train-00000-of-00003.arrow"}
    assert "2 of 3 train shards are missing (train-00001-of-00003.arrow" in refused_images(out)
    seen, stop_at = [], -1
    cache_images(photos, out, size=16)
    assert len(seen) == 10 and shards(out) == shards(tmp_path / "whole")
    torn = out / "val-00001-of-00003.arrow"
    torn.write_bytes(torn.read_bytes()[:-1])
    assert "is it cut short?" in refused_images(out, "val")
    seen = []
    cache_images(photos, out, size=16)
    assert len(seen) == 2 and shards(out) == shards(tmp_path / "whole")


def test_a_cache_of_another_size_or_set_is_not_mixed_with(photos, cached, tmp_path):
    before = shards(cached)
    assert "is a cache of size 16, not 32" in refused(lambda: cache_images(photos, cached, size=32))
    (photos / "train" / "cat" / "new.png").write_bytes(b"")
    line = refused(lambda: cache_images(photos, cached, size=16))
    assert "another set, or of this one before it changed" in line
    assert shards(cached) == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("mine")
    assert "(diary.txt) and no cache" in refused(cache_images, photos, tmp_path / "full")
    assert "is a cache itself" in refused(cache_images, cached, tmp_path / "again")
    assert "the digits need no cache" in refused(cache_images, "digits", tmp_path / "again")
    assert "no image set at" in refused(cache_images, tmp_path / "nowhere", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_two_cifar_sets_at_once_are_refused(tmp_path):
    write_cifar(tmp_path / "both"), write_cifar(tmp_path / "both", hundred=True)
    line = refused(cache_images, tmp_path / "both", tmp_path / "cache")
    assert "holds CIFAR-10 and CIFAR-100" in line


def test_what_does_not_fit_on_the_disk_is_refused_before_it_is_written(
    photos, tmp_path, monkeypatch
):
    free = shutil.disk_usage(tmp_path)._replace(free=4000)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: free)
    line = refused(cache_images, photos, tmp_path / "cache")
    assert "needs about 0.0 GB" in line and "smaller --size" in line
    assert not shards(tmp_path / "cache")
    assert cache_images(photos, tmp_path / "cache", size=6)["train"].size == 6  # as it says


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"version": 2}, "is of version 2"),
        ({"splits": {}}, "with 0 splits"),
        ({"short_side": "wide"}, "short_side must be"),
        ({"splits": {"train": {"images": 6}}}, "splits.train.shards is missing"),
        ({"colour": 1}, "unknown cache key 'colour'"),
    ],
)
def test_a_damaged_plan_is_one_line(cached, change, line):
    fields = json.loads((cached / FILE).read_text())
    (cached / FILE).write_text(json.dumps(fields | change))
    assert line in refused_images(cached)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"images": 7}, "hold 6 images, not the 7"),
        ({"shards": 10**9}, "allowed are 1 to 99999"),
        ({"channels": 4}, "of 1 or 3 channels"),
        ({"classes": ["cat"]}, "run from 0 to 1, but the set has 1 classes"),
    ],
)
def test_a_plan_that_the_shards_contradict_is_one_line(cached, change, line):
    fields = json.loads((cached / FILE).read_text())
    fields["splits"]["train"] |= change
    (cached / FILE).write_text(json.dumps(fields))
    assert line in refused_images(cached)


def test_a_split_of_a_strangers_cache_does_not_lead_out_of_it(cached, tmp_path):
    fields = json.loads((cached / FILE).read_text())
    fields["splits"]["../val"] = fields["splits"]["val"]
    (cached / FILE).write_text(json.dumps(fields))
    assert "leads out of its folder" in refused_images(cached)
    (cached / FILE).write_text("{")
    assert "is not JSON" in refused_images(cached)
    assert "is not JSON" in (check_data(cached).splits[0].error or "")
