from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from pidformer.data import EvalImages, open_images
from pidformer.data.benchmarks import find_set, missing_corruptions, open_corrupted, open_shift
from pidformer.data.benchmarks.corrupted import GROUPS, KNOWN, SEVERITIES, STANDARD
from pidformer.data.imagenet import imagenet_classes, subset_classes
from pidformer.data.views import relabel, sample
from pidformer.errors import InputError
from pidformer.robustness import corruptions
from tests.data.sets import encoded, write_parquet

WNIDS = ("n01440764", "n01443537", "n15075141")  # places 0, 1 and 999


def refused(call, *arguments) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def write_classes(folder: Path, classes=WNIDS, count: int = 2, level: int = 0, size=(8, 8)) -> Path:
    """`count` grey JPEGs a class; their level tells where they come from."""
    for place, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            data = encoded(level + 10 * place + number, size)
            (folder / name / f"ILSVRC2012_val_0000000{number}.JPEG").write_bytes(data)
    return folder


def level(source, index: int) -> int:
    return source.decode(index).getpixel((3, 3))[0]


# --- where a set lies


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


# --- corruptions in folders


def test_the_names_are_those_of_the_corruptions_we_make():
    assert STANDARD == corruptions.CORRUPTIONS and SEVERITIES == corruptions.SEVERITIES
    assert KNOWN == corruptions.CORRUPTIONS + corruptions.EXTRA_CORRUPTIONS


@pytest.mark.parametrize("group", [*GROUPS, "flat"])
def test_corruptions_lie_in_the_root_or_in_the_archives_folders(tmp_path, group):
    root = tmp_path / "ImageNet-C"
    place = root if group == "flat" else root / group
    name = "fog" if group == "flat" else GROUPS[group][0]
    for severity in (1, 5):
        write_classes(place / name / str(severity), level=20 * severity)
    source = open_corrupted(root, name, 5)
    assert source.classes == WNIDS and source.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert [level(source, k) for k in range(6)] == pytest.approx(
        [100, 101, 110, 111, 120, 121], abs=1
    )
    assert level(open_corrupted(root, name, 1), 0) == pytest.approx(20, abs=1)
    assert source.name(2).startswith(f"ImageNet-C/{name}/5/n01443537/")
    assert relabel(source, imagenet_classes()).labels.tolist() == [0, 0, 1, 1, 999, 999]


def test_groupings_may_be_mixed_even_within_a_corruption(tmp_path):
    write_classes(tmp_path / "fog" / "1")
    write_classes(tmp_path / "weather" / "fog" / "2", level=50)
    write_classes(tmp_path / "noise" / "shot_noise" / "1")
    assert level(open_corrupted(tmp_path, "fog", 2), 0) == pytest.approx(50, abs=1)
    assert len(open_corrupted(tmp_path, "shot_noise", 1)) == 6
    names, severities = ("fog", "shot_noise", "snow"), (1, 2, 3)
    expected = ["fog/3", "shot_noise/2", "shot_noise/3", "snow"]
    assert missing_corruptions(tmp_path, names, severities) == expected
    assert len(missing_corruptions(tmp_path)) == 3 + 4 + 13  # of the 15 and five severities


def test_a_whole_set_lacks_nothing(tmp_path):
    for group, names in GROUPS.items():
        for name in names:
            for severity in SEVERITIES:
                (tmp_path / group / name / str(severity) / WNIDS[0]).mkdir(parents=True)
    assert missing_corruptions(tmp_path) == [] == missing_corruptions(tmp_path, KNOWN)
    (tmp_path / "weather" / "fog" / "3" / WNIDS[0]).rmdir()  # an empty folder is a gap
    assert missing_corruptions(tmp_path) == ["fog/3"]
    assert "hold no image" in refused(open_corrupted, tmp_path, "fog", 2)


def test_corruptions_that_are_not_there(tmp_path):
    assert "no fog of severity 2" in refused(open_corrupted, tmp_path, "fog", 2)
    assert "did you mean 'fog'" in refused(open_corrupted, tmp_path, "fogg", 2)
    assert "no corrupted set at" in refused(open_corrupted, tmp_path / "absent", "fog", 2)
    assert "no corrupted set at" in refused(missing_corruptions, tmp_path / "absent")
    for severity in (0, 6, True, "3"):
        assert "severity must be" in refused(open_corrupted, tmp_path, "fog", severity)


def test_imagenet_c_is_shown_as_it_is_stored(tmp_path):
    folder = tmp_path / "fog" / "3" / WNIDS[0]
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(256, size=(224, 224, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "a.JPEG", quality=85)
    (batch,) = EvalImages(open_corrupted(tmp_path, "fog", 3), image_size=224, batch_size=4)
    stored = np.asarray(Image.open(folder / "a.JPEG"))
    np.testing.assert_array_equal((batch.images[0] * 255).round().permute(1, 2, 0), stored)


# --- CIFAR-C


def write_cifar_c(root: Path, name: str = "fog", count: int = 4, repeated: bool = True):
    root.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).integers(256, size=(5 * count, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(count, dtype=np.uint8)[::-1]
    np.save(root / f"{name}.npy", images)
    np.save(root / "labels.npy", np.tile(labels, 5) if repeated else labels)
    return images


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


class Malice:
    def __reduce__(self):
        return os.system, ("touch owned",)


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


# --- shifted sets


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


# --- out of distribution, in Parquet


def test_images_of_no_class_keep_their_label_in_batches(tmp_path):
    write_parquet(tmp_path / "train.parquet", [0, 1], names=["cat", "dog"])
    write_parquet(tmp_path / "ood.parquet", [-1, -1, -1])
    source = open_images(tmp_path, "ood")
    batches = list(EvalImages(source, image_size=8, batch_size=2))
    assert [batch.targets.tolist() for batch in batches] == [[-1, -1], [-1]]
    assert relabel(source, ["dog", "cat"]).labels.tolist() == [-1] * 3
    assert source.decode(1).getpixel((0, 0)) == (20, 20, 20)


def test_ood_parquet_of_tiny_imagenet():
    folder = Path(os.environ.get("PIDFORMER_DATA", "absent")) / "tiny-imagenet-100"
    if not folder.is_dir():
        pytest.skip("set PIDFORMER_DATA to the folder that holds tiny-imagenet-100")
    source = open_images(folder, "ood")
    (batch,) = EvalImages(sample(source, 8), image_size=64, batch_size=8)
    assert batch.images.shape == (8, 3, 64, 64) and batch.targets.tolist() == [-1] * 8
    assert float(batch.images.std()) > 0 and len(source) == 1000
