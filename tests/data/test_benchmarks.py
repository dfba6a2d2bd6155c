from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pidformer.data import EvalImages
from pidformer.data.benchmarks import (
    GROUPS,
    KNOWN,
    SEVERITIES,
    STANDARD,
    missing_corruptions,
    open_corrupted,
)
from pidformer.data.imagenet import imagenet_classes
from pidformer.data.views import relabel
from pidformer.robustness import corruptions
from tests.data.sets import encoded, refused

WNIDS = ("n01440764", "n01443537", "n15075141")  # places 0, 1 and 999


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
