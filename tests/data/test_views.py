from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pidformer.data import EvalImages, open_images, sample_images
from pidformer.data.views import ImageView, relabel, restrict, sample
from pidformer.errors import InputError
from tests.data.sets import memory_set


def evaluated(view, **options) -> tuple[int, torch.Tensor, torch.Tensor]:
    batches = EvalImages(view, **options)
    images, labels = map(torch.cat, zip(*batches, strict=True))
    return batches.skipped, images, labels


def test_relabel_finds_classes_by_name():
    source = memory_set(count=7, num_classes=3)
    source.labels[2] = -1
    view = relabel(source, ["class-2", "other", "class-0", "class-1"])
    assert view.labels.tolist() == [2, 3, -1, 2, 3, 0, 2]  # class 0 is at 2, 1 at 3, 2 at 0
    assert view.classes == ("class-2", "other", "class-0", "class-1")
    assert view.labels.dtype == torch.int64 and view.channels == 3
    np.testing.assert_array_equal(np.asarray(view.decode(4)), source.images[4])


@given(st.permutations(range(5)), st.lists(st.integers(-1, 4), min_size=1, max_size=20))
def test_relabel_keeps_every_name(order, labels):
    source = memory_set(count=len(labels), num_classes=5)
    source.labels = torch.tensor(labels)
    view = relabel(source, [source.classes[place] for place in order])
    for old, new in zip(labels, view.labels.tolist(), strict=True):
        assert (old < 0) == (new < 0)
        assert old < 0 or view.classes[new] == source.classes[old]


def test_relabel_names_up_to_five_foreign_classes():
    source = memory_set(count=14, num_classes=7)
    with pytest.raises(InputError) as caught:
        relabel(source, ["class-0"])
    assert "6 of 7" in str(caught.value) and "class-5 and 1 more" in str(caught.value)
    source.labels[:] = 0  # a class without images needs no place
    assert relabel(source, ["other", "class-0"]).labels.unique().tolist() == [1]


def test_class_names_given_twice_are_refused():
    source = memory_set()
    for view in (relabel, restrict):
        with pytest.raises(InputError, match="more than once: class-0"):
            view(source, ["class-0", "class-1", "class-2", "class-0"])
        with pytest.raises(InputError, match="no class names"):
            view(source, [])


def test_restrict_keeps_the_sources_own_labels():
    source = memory_set(count=8, num_classes=4)
    view = restrict(source, ["class-3", "class-1"])
    assert view.labels.tolist() == [1, 3, 1, 3] and view.classes == source.classes
    assert [view.name(k) for k in range(4)] == ["image-1", "image-3", "image-5", "image-7"]
    again = relabel(view, ["class-1", "class-3"])  # a view of a view
    assert again.labels.tolist() == [0, 1, 0, 1] and again.name(1) == "image-3"
    np.testing.assert_array_equal(np.asarray(again.decode(1)), source.images[3])


def test_restrict_to_what_is_not_there():
    source = memory_set(count=8, num_classes=4)
    with pytest.raises(InputError, match="1 of 2 classes are not in the image set: cat"):
        restrict(source, ["class-1", "cat"])
    source.labels[:] = 0
    with pytest.raises(InputError, match="no image of class-1"):
        restrict(source, ["class-1"])


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 3))
def test_a_sample_is_the_same_one_in_stored_order(images, count, seed):
    view = sample(memory_set(count=images), count, seed)
    taken = view.indices.tolist()
    assert taken == sorted(set(taken)) and len(view) == min(count, images)
    assert taken == sample(memory_set(count=images), count, seed).indices.tolist()
    assert set(taken) <= set(sample(memory_set(count=images), count + 3, seed).indices.tolist())
    assert view.labels.tolist() == [index % 3 for index in taken]


def test_a_sample_is_a_fair_draw_that_depends_on_the_seed():
    source = memory_set(count=20)
    hits = np.zeros(20)
    for seed in range(400):
        hits[sample(source, 5, seed).indices] += 1
    assert abs(hits - 100).max() < 45  # five standard deviations: 5 sqrt(400 / 4 * 3 / 4)
    with pytest.raises(InputError, match="count must be"):
        sample(source, 0)


def test_a_view_needs_a_label_for_each_image():
    with pytest.raises(InputError, match="2 images and 3 labels"):
        ImageView(memory_set(), np.arange(2), torch.zeros(3, dtype=torch.int64), ("a",))


@pytest.mark.parametrize("resident", [True, False])
def test_views_are_evaluated_like_any_set(resident):
    source = memory_set(count=9, broken=(4,))
    view = restrict(source, ["class-1"])  # images 1, 4, 7
    options = {"image_size": 8, "batch_size": 2, "resident": resident, "corrupt_limit": 0.5}
    with pytest.warns(UserWarning, match="image-4"):
        skipped, images, labels = evaluated(view, **options)
    assert skipped == 1 and labels.tolist() == [1, 1]
    expected = torch.from_numpy(source.images[[1, 7]]).permute(0, 3, 1, 2) / 255
    torch.testing.assert_close(images, expected)


def test_a_view_can_be_sent_to_another_process():
    view = restrict(memory_set(), ["class-2"])
    copy = pickle.loads(pickle.dumps(view))
    assert copy.labels.tolist() == view.labels.tolist() and copy.name(1) == view.name(1)


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
