from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from pidformer.data import EvalImages
from pidformer.data.benchmarks import SEVERITIES, missing_corruptions, open_corrupted
from pidformer.data.views import sample
from tests.data.sets import Malice, refused, write_cifar_c


@pytest.mark.parametrize("repeated", [True, False])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_cifar_c_severities_are_fifths(tmp_path, repeated, severity):
    root = tmp_path / "CIFAR-10-C"
    images = write_cifar_c(root, repeated=repeated)
    source = open_corrupted(root, "fog", severity)
    assert len(source) == 4 and source.labels.tolist() == [3, 2, 1, 0]
    assert source.labels.dtype == torch.int64 and source.classes[3] == "cat"
    for index in range(4):
        expected = images[(severity - 1) * 4 + index]
        np.testing.assert_array_equal(np.asarray(source.decode(index)), expected)
    assert source.name(1) == f"CIFAR-10-C/fog.npy severity {severity} image 1"
    with pytest.raises(IndexError):
        source.decode(4)


def test_cifar_c_is_mapped_and_goes_to_other_processes_by_name(tmp_path):
    write_cifar_c(tmp_path, count=100)
    view = sample(open_corrupted(tmp_path, "fog", 2), 3)
    sent = pickle.dumps(view)
    assert len(sent) < 20_000  # the images alone are a million and a half
    assert pickle.loads(sent).decode(1).tobytes() == view.decode(1).tobytes()


@pytest.mark.parametrize("workers", [0, 1])
def test_cifar_c_in_batches(tmp_path, workers):
    images = write_cifar_c(tmp_path)
    source = open_corrupted(tmp_path, "fog", 5)
    options = {"image_size": 32, "batch_size": 3, "resident": False, "num_workers": workers}
    shown = torch.cat([batch.images for batch in EvalImages(source, **options)])
    expected = torch.from_numpy(images[16:]).permute(0, 3, 1, 2) / 255
    torch.testing.assert_close(shown, expected)


def test_cifar_classes_go_by_the_folders_name_then_by_the_labels(tmp_path):
    write_cifar_c(tmp_path / "cifar-100-c")
    assert open_corrupted(tmp_path / "cifar-100-c", "fog", 1).classes[-1] == "99"
    write_cifar_c(tmp_path / "other")
    assert len(open_corrupted(tmp_path / "other", "fog", 1).classes) == 10
    np.save(tmp_path / "other" / "labels.npy", np.array([0, 99, 5, 7]))
    assert len(open_corrupted(tmp_path / "other", "fog", 1).classes) == 100
    write_cifar_c(tmp_path / "CIFAR-10-C")
    np.save(tmp_path / "CIFAR-10-C" / "labels.npy", np.array([0, 10, 5, 7]))
    message = refused(open_corrupted, tmp_path / "CIFAR-10-C", "fog", 1)
    assert "run from 0 to 10" in message and "allowed are 0 to 9" in message


def test_missing_arrays_are_listed(tmp_path):
    write_cifar_c(tmp_path)
    assert missing_corruptions(tmp_path, ("fog", "snow")) == ["snow"]
    assert "snow.npy is missing" in refused(open_corrupted, tmp_path, "snow", 1)
    (tmp_path / "labels.npy").unlink()
    assert "labels.npy is missing" in refused(open_corrupted, tmp_path, "fog", 1)


@pytest.mark.parametrize("size", [0, 5, 60, 128 + 3000])
def test_a_truncated_array_is_named(tmp_path, size):
    write_cifar_c(tmp_path)
    path = tmp_path / "fog.npy"
    path.write_bytes(path.read_bytes()[:size])
    for call in (lambda: open_corrupted(tmp_path, "fog", 1), lambda: missing_corruptions(tmp_path)):
        assert f"cannot read {path}" in refused(call)


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((9, 32, 32, 3), np.uint8),
        np.zeros((10, 3, 32, 32), np.uint8),
        np.zeros((10, 32, 32), np.uint8),
        np.zeros((10, 32, 32, 3), np.float32),
        np.uint8(3),
    ],
    ids=["not five blocks", "channels first", "grey", "floats", "a number"],
)
def test_an_array_of_another_shape_is_named(tmp_path, images):
    write_cifar_c(tmp_path, count=2)
    np.save(tmp_path / "fog.npy", images)
    message = refused(open_corrupted, tmp_path, "fog", 1)
    assert str(tmp_path / "fog.npy") in message


@pytest.mark.parametrize(
    "labels",
    [np.zeros(3, int), np.zeros(19, int), np.zeros((4, 5), int), np.zeros(4), np.uint8(0)],
    ids=["short", "one off", "a table", "floats", "a number"],
)
def test_labels_of_another_length_are_named(tmp_path, labels):
    write_cifar_c(tmp_path, count=4)
    np.save(tmp_path / "labels.npy", labels)
    for call in (lambda: open_corrupted(tmp_path, "fog", 1), lambda: missing_corruptions(tmp_path)):
        assert str(tmp_path / "labels.npy") in refused(call)


def test_labels_must_be_those_of_the_same_images_at_each_severity(tmp_path):
    write_cifar_c(tmp_path, count=4)
    np.save(tmp_path / "labels.npy", np.arange(20) % 7)
    assert "differ between the severities" in refused(open_corrupted, tmp_path, "fog", 1)


@pytest.mark.parametrize("name", ["fog.npy", "labels.npy"])
def test_pickles_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "CIFAR-10-C"
    write_cifar_c(root)
    np.save(root / name, np.array([Malice()], dtype=object), allow_pickle=True)
    assert f"cannot read {root / name}" in refused(open_corrupted, root, "fog", 1)
    (root / name).write_bytes(pickle.dumps(Malice()))
    assert f"cannot read {root / name}" in refused(open_corrupted, root, "fog", 1)
    assert not (tmp_path / "owned").exists()
