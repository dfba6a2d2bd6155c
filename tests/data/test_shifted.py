from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from pidformer.data import EvalImages
from pidformer.data.benchmarks import open_shift
from pidformer.data.imagenet import imagenet_classes, subset_classes
from pidformer.data.views import relabel
from tests.data.sets import encoded, refused


@pytest.fixture(scope="module")
def shifted(tmp_path_factory) -> Path:
    """ImageNet-A with one image a class."""
    root = tmp_path_factory.mktemp("sets") / "imagenet-a"
    picture = encoded()
    for name in subset_classes("imagenet-a"):
        (root / name).mkdir(parents=True)
        (root / name / "0.001_cat_0.9.jpg").write_bytes(picture)
    (root / "README.txt").write_text("about the set")
    return root


def test_a_shifted_set_has_its_200_classes_in_index_order(shifted):
    source = open_shift(shifted)
    assert source.classes == subset_classes("imagenet-a") and len(source) == 200
    assert source.labels.tolist() == list(range(200))
    places = relabel(source, imagenet_classes()).labels
    assert places[:4].tolist() == [6, 11, 13, 15] and int(places[-1]) == 988


def test_missing_and_foreign_class_folders_are_listed(tmp_path, shifted):
    root = tmp_path / "ImageNet-A"
    root.mkdir()
    names = [*subset_classes("imagenet-a")[2:], "n01440764"]
    for name in names:
        (root / name).symlink_to(shifted / subset_classes("imagenet-a")[0])
    message = refused(open_shift, root)
    assert "2 missing: n01498041, n01531178" in message and "1 foreign: n01440764" in message
    root.rename(tmp_path / "subset")  # another name: any classes
    assert open_shift(tmp_path / "subset").classes == tuple(sorted(names))


def test_a_folder_without_classes(tmp_path):
    assert "no image set at" in refused(open_shift, tmp_path / "absent")
    assert "no class folder" in refused(open_shift, tmp_path)
    (tmp_path / "imagenet-o").mkdir()
    assert "200 missing" in refused(open_shift, tmp_path / "imagenet-o")


def test_pictures_of_all_sizes_are_resized_and_cropped(tmp_path):
    rng = np.random.default_rng(0)
    sizes = [(300, 200), (64, 90), (256, 256), (500, 80), (20, 20)]
    (tmp_path / "cat").mkdir()
    for number, (width, height) in enumerate(sizes):
        image = Image.fromarray(rng.integers(256, size=(height, width, 3), dtype=np.uint8))
        image.save(tmp_path / "cat" / f"{number}.png")
    source = open_shift(tmp_path)
    (batch,) = EvalImages(source, image_size=224, batch_size=8)
    bicubic = transforms.InterpolationMode.BICUBIC
    reference = transforms.Compose(
        [transforms.Resize(256, bicubic), transforms.CenterCrop(224), transforms.PILToTensor()]
    )
    expected = torch.stack([reference(source.decode(k)) for k in range(5)]) / 255
    torch.testing.assert_close(batch.images, expected)
