from __future__ import annotations

import pickle

import numpy as np
import pytest

from pidformer.data import open_images
from tests.data.sets import Malice, refused_images, write_cifar


class CodecMalice:
    def __reduce__(self):
        import _codecs

        return _codecs.encode, ("bomb", "zlib")


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize(("hundred", "count"), [(False, 10), (True, 2)])
def test_cifar(tmp_path, hundred, count, protocol):
    written = write_cifar(tmp_path, hundred, protocol)
    train, val = open_images(tmp_path, "train"), open_images(tmp_path, "val")
    assert (len(train), len(val)) == (count, 2) and train.classes == ("cat", "dog")
    assert train.labels.tolist() == [0, 1] * (count // 2)
    first = written["train" if hundred else "data_batch_1"][0].reshape(3, 32, 32)
    np.testing.assert_array_equal(np.asarray(train.decode(0)), first.transpose(1, 2, 0))
    inner = tmp_path / ("cifar-100-python" if hundred else "cifar-10-batches-py")
    assert len(open_images(inner, "test")) == 2


@pytest.mark.parametrize(("malice", "named"), [(Malice(), "system"), (CodecMalice(), "zlib")])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_cifar_pickles_cannot_call_anything(tmp_path, monkeypatch, malice, named, protocol):
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": malice, "labels": []}, protocol))
    message = refused_images(tmp_path)
    assert named in message
    assert not (tmp_path / "owned").exists()


def test_broken_cifar_is_one_line(tmp_path):
    write_cifar(tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    assert "unknown split" in refused_images(tmp_path, "ood")
    for content in (b"", b"\x80\x02garbage\n\n", pickle.dumps([1, 2]), pickle.dumps({"data": 3})):
        (folder / "data_batch_2").write_bytes(content)
        assert "download the set again" in refused_images(tmp_path)
    bad = {"data": np.zeros((2, 9), np.uint8), "labels": [0, 1]}
    (folder / "data_batch_2").write_bytes(pickle.dumps(bad))
    assert "uint8 rows of 3072" in refused_images(tmp_path)
    (folder / "data_batch_2").unlink()
    assert "missing" in refused_images(tmp_path)
    write_cifar(tmp_path, hundred=True)
    assert "CIFAR-10 and CIFAR-100" in refused_images(tmp_path)
