from __future__ import annotations

from pathlib import Path

import pytest

from pidformer.data.benchmarks import find_set
from tests.data.sets import refused


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("imagenet-a", "imagenet-a"),
        ("ImageNet-A", "imagenet-a"),
        ("imagenet_a", "imagenet-a"),
        ("ImageNet-C", "imagenet-c"),
        ("Tiny-ImageNet-C", "tiny-imagenet-c"),
        ("tiny_imagenet_c", "tiny-imagenet-c"),
        ("CIFAR-10-C", "cifar-10-c"),
        ("cifar100c", "cifar-100-c"),
    ],
)
def test_a_set_is_found_by_its_usual_spellings(tmp_path, monkeypatch, stored, name):
    root = tmp_path / stored
    root.mkdir()
    (tmp_path / "imagenet-o.tar").write_text("not a folder")
    assert find_set(tmp_path, name) == find_set(root, name) == root
    assert find_set(tmp_path, "imagenet-o") is None
    monkeypatch.chdir(root)
    assert find_set(Path("."), name) == Path(".")


def test_a_set_in_a_folder_of_its_own_name_is_the_inner_one(tmp_path):
    inner = tmp_path / "imagenet-r" / "imagenet-r"
    inner.mkdir(parents=True)
    assert find_set(tmp_path / "imagenet-r", "imagenet-r") == inner


def test_what_cannot_be_found(tmp_path):
    assert find_set(tmp_path / "absent", "imagenet-a") is None
    assert "unknown published set 'imagenet-b'" in refused(find_set, tmp_path, "imagenet-b")
    for name in ("imagenet-a", "ImageNet-A"):
        (tmp_path / name).mkdir(exist_ok=True)
    if len(list(tmp_path.iterdir())) == 2:  # the file system knows case
        assert "as ImageNet-A and imagenet-a" in refused(find_set, tmp_path, "imagenet-a")
