import base64
import itertools
import math
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassJaccardIndex,
)

from pidformer.data.segmentation import (
    class_table,
    confusion,
    miou_interval,
    segmentation_scores,
    unpack_areas,
)
from pidformer.data.segmentation.confusion import areas, pack_areas
from pidformer.errors import InputError


def maps(seed: int, classes: int, absent: int = 0):
    """Labels and predictions; the last `absent` classes are in neither."""
    generator = torch.Generator().manual_seed(seed)
    shape = (3, 13, 17)
    truth = torch.randint(classes - absent, shape, generator=generator)
    predicted = torch.randint(classes - absent, shape, generator=generator)
    agrees = torch.rand(shape, generator=generator) < 0.6
    predicted = torch.where(agrees, truth, predicted)
    truth[torch.rand(shape, generator=generator) < 0.1] = 255
    return truth.to(torch.uint8), predicted.to(torch.uint8)


@pytest.mark.parametrize("absent", [0, 2])
@pytest.mark.parametrize("seed", range(3))
def test_scores_equal_torchmetrics(seed, absent):
    truth, predicted = maps(seed, 7, absent)
    total = confusion(truth, predicted, 7).sum(0)
    scores = segmentation_scores(total)
    options = {"num_classes": 7, "ignore_index": 255}
    reference = {
        "miou": MulticlassJaccardIndex(average="macro", **options),
        "pixel_accuracy": MulticlassAccuracy(average="micro", **options),
        "mean_accuracy": MulticlassAccuracy(average="macro", **options),
    }
    for name, metric in reference.items():
        expected = 100 * float(metric(predicted.long(), truth.long()))
        assert scores[name] == pytest.approx(expected, rel=1e-5)
    matrix = MulticlassConfusionMatrix(**options)(predicted.long(), truth.long())
    assert torch.equal(total, matrix)


@pytest.mark.parametrize("cells", [c for c in itertools.product(range(3), repeat=4) if any(c)])
def test_classes_of_a_pixel_or_none_count_as_defined(cells):
    matrix = np.array(cells).reshape(2, 2)
    scores = segmentation_scores(matrix)
    hits, truth, called = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    unions = [(hits[k], truth[k] + called[k] - hits[k]) for k in range(2)]
    ious = [hit / union for hit, union in unions if union]
    recalls = [hits[k] / truth[k] for k in range(2) if truth[k]]
    assert scores["miou"] == pytest.approx(100 * sum(ious) / len(ious))
    assert scores["mean_accuracy"] == pytest.approx(100 * sum(recalls) / len(recalls))
    assert scores["pixel_accuracy"] == pytest.approx(100 * hits.sum() / matrix.sum())


@given(seed=st.integers(0, 10**6), classes=st.integers(2, 9))
@settings(max_examples=25, deadline=None)
def test_confusion_is_a_count(seed, classes):
    truth, predicted = maps(seed, classes)
    matrices = confusion(truth, predicted, classes)
    expected = np.zeros((3, classes, classes), dtype=int)
    for image in range(3):
        for t, p in zip(truth[image].flatten(), predicted[image].flatten(), strict=True):
            if t != 255:
                expected[image, t, p] += 1
    assert np.array_equal(matrices.numpy(), expected)


def test_the_protocol_for_absent_classes():
    """Class 2 is predicted but not in the truth (IoU 0); class 3 is nowhere (left out)."""
    matrix = torch.tensor([[6, 0, 2, 0], [0, 8, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    scores = segmentation_scores(matrix)
    assert scores["miou"] == pytest.approx(100 * (6 / 8 + 1 + 0) / 3)
    assert scores["mean_accuracy"] == pytest.approx(100 * (6 / 8 + 1) / 2)
    assert scores["pixel_accuracy"] == pytest.approx(100 * 14 / 16)
    table = class_table(matrix, ["a", "b", "c", "d"])
    assert [row["pixels"] for row in table] == [8, 8, 0, 0]
    assert table[2]["iou"] == 0 and np.isnan(table[2]["accuracy"]) and np.isnan(table[3]["iou"])


def test_nothing_labelled_gives_nan_not_an_error():
    scores = segmentation_scores(torch.zeros(3, 3))
    assert all(np.isnan(value) for value in scores.values())


def test_areas_of_older_records_are_read_and_newer_ones_are_smaller():
    rng = np.random.default_rng(0)
    hits, missed, wrong = rng.integers(0, 3000, (3, 40, 11)) * (rng.random((3, 40, 11)) < 0.7)
    per_pair = np.stack([hits, hits + missed, hits + wrong], axis=1)
    older = base64.b64encode(zlib.compress(per_pair.astype("<i4").tobytes())).decode()
    assert np.array_equal(unpack_areas(older, 11), per_pair)
    assert np.array_equal(unpack_areas(pack_areas(per_pair), 11), per_pair)
    assert len(pack_areas(per_pair)) < 0.8 * len(older)


def test_areas_survive_a_record_and_give_an_interval():
    truth, predicted = maps(0, 5)
    matrices = confusion(truth, predicted, 5)
    per_pair = areas(matrices)
    assert np.array_equal(unpack_areas(pack_areas(per_pair), 5), per_pair)
    hits, true, called = per_pair.sum(0)
    miou = 100 * np.mean(hits / (true + called - hits))
    assert miou == pytest.approx(segmentation_scores(matrices.sum(0))["miou"])
    low, high = miou_interval(per_pair)
    assert low < miou < high
    same = np.repeat(per_pair[:1], 4, axis=0)  # nothing varies
    assert miou_interval(same)[0] == pytest.approx(miou_interval(same)[1])
    assert all(math.isnan(bound) for bound in miou_interval(per_pair[:1]))


def test_shapes_are_checked():
    with pytest.raises(InputError, match="one shape"):
        confusion(torch.zeros(1, 2, 2), torch.zeros(1, 2, 3), 3)
