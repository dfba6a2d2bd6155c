"""Published robustness sets, read as their archives unpack.

ImageNet-A, -R and -O have a folder for each class; ImageNet-C, Tiny ImageNet-C, CIFAR-10-C and
CIFAR-100-C one corruption at one severity, as folders or (CIFAR) as one .npy per corruption, mapped
into memory and never unpickled.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pidformer.data.formats.folders import FolderImages, class_folders
from pidformer.data.formats.shards import check_labels
from pidformer.data.imagenet import SUBSETS, subset_classes
from pidformer.data.sources import ArrayImages, ImageSource
from pidformer.errors import InputError, check_known, cut, some

_TITLES = [f"ImageNet-{letter}" for letter in "CARO"]
_TITLES += ["Tiny-ImageNet-C", "CIFAR-10-C", "CIFAR-100-C"]
SETS = {title.lower(): title for title in _TITLES}
"""Titles, as their authors write them, by name."""
# By the archives they come in: noise.tar, blur.tar, ... each unpacks into a folder of that name.
GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
}
STANDARD = tuple(name for group, names in GROUPS.items() if group != "extra" for name in names)
KNOWN = tuple(name for names in GROUPS.values() for name in names)
SEVERITIES = (1, 2, 3, 4, 5)
LABELS = "labels.npy"
_TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_HUNDRED = tuple(str(number) for number in range(100))


def find_set(folder: Path, name: str) -> Path | None:
    """The set `name` (one of `SETS`) directly in `folder`, or `folder` itself; None if neither.

    Case and the signs between words are free: imagenet-a, ImageNet-A, imagenet_a. A set inside
    a folder of its own name (imagenet-a/imagenet-a) is the inner one.
    """
    check_known("published set", name, SETS)
    if not folder.is_dir():
        return None
    inner = sorted(path for path in folder.iterdir() if path.is_dir() and set_name(path) == name)
    if len(inner) > 1:
        raise InputError(
            f"{folder} holds {name} {len(inner)} times, as {inner[0].name} and {inner[1].name}; "
            "give one of them"
        )
    return inner[0] if inner else folder if set_name(folder) == name else None


def set_name(root: Path) -> str | None:
    """The one of `SETS` that the folder's name spells."""
    return _SPELLED.get(letters_of(root.absolute().name))


def set_title(root: Path) -> str | None:
    """The same as its authors write it."""
    return SETS.get(set_name(root) or "")


def letters_of(name: str) -> str:
    """What tells a folder's name from others: case and the signs between words are free."""
    return re.sub(r"[-_. ]", "", name).lower()


_SPELLED = {letters_of(name): name for name in SETS}


def shifted_splits(root: Path) -> list[str]:
    """ "all" where the folder has the name of one of the three sets."""
    return ["all"] if set_name(root) in SUBSETS else []


def open_shift(root: Path) -> FolderImages:
    """The images of `root`/<class>/*; files beside the class folders (README.txt) do not count.

    Classes are the folder names, sorted. When `root` bears the name of one of the three sets they
    must be its 200 classes.
    """
    if not root.is_dir():
        raise InputError(f"no image set at {root}; give the folder that holds <class>/<image>.jpg")
    classes = class_folders(root)
    name = set_name(root)
    if name in SUBSETS and classes != (known := subset_classes(name)):
        missing, foreign = sorted({*known} - {*classes}), sorted({*classes} - {*known})
        raise InputError(
            f"{root} is not the {len(known)} class folders of {name}; {len(missing)} missing: "
            f"{some(missing)}; {len(foreign)} foreign: {some(foreign)}; unpack the archive again, "
            "or rename a folder that is another set"
        )
    if not classes:
        raise InputError(f"no class folder in {root}; expected {root}/<class>/<image>.jpg")
    return FolderImages(root, classes)


def open_corrupted(root: Path, corruption: str, severity: int) -> ImageSource:
    """The images of one corruption at one severity, of the set whose folder is `root`.

    - `root`/<corruption>/<severity>/<class>/*, with or without the archives' folders (noise, blur,
      weather, digital, extra) before the corruption; each corruption may have its own way.
    - `root`/<corruption>.npy and labels.npy (CIFAR), the five severities one after another.
    """
    _check(root, (corruption,), (severity,))
    if _is_arrays(root):
        return _open_stack(root, corruption, severity)
    place = _severity_folder(root, corruption, severity)
    if place is None:
        raise InputError(
            f"no {corruption} of severity {severity} in {root}; expected "
            f"{root}/[<group>/]{corruption}/{severity}/<class>/<image>.JPEG or {corruption}.npy"
        )
    title = f"{root.name}/{corruption}/{severity}"
    return FolderImages(place, class_folders(place), title)


def missing_corruptions(
    root: Path, names: Sequence[str] = STANDARD, severities: Sequence[int] = SEVERITIES
) -> list[str]:
    """What the set lacks: "fog" for a whole corruption, "fog/3" for one severity of it.

    An array that is there but cannot be used is no gap but an InputError that names the file.
    """
    _check(root, names, severities)
    missing, is_arrays = [], _is_arrays(root)
    for name in names:
        gaps = [level for level in severities if not _is_held(root, name, level, is_arrays)]
        whole = len(gaps) == len(severities)
        missing += [name] if whole else [f"{name}/{level}" for level in gaps]
        if not gaps and is_arrays:
            _open_stack(root, name, SEVERITIES[0])
    return missing


def corrupted_splits(root: Path) -> list[str]:
    """What the set has, as "fog/3"."""
    places, is_arrays = product(KNOWN, SEVERITIES), _is_arrays(root)
    return [f"{n}/{level}" for n, level in places if _is_held(root, n, level, is_arrays)]


def corrupted_notes(root: Path) -> tuple[str, ...]:
    try:
        lacking = missing_corruptions(root)
    except InputError as error:
        return (str(error),)
    return (f"of the 15 corruptions it lacks {', '.join(lacking)}",) if lacking else ()


def corrupted_title(root: Path) -> str:
    return set_title(root) or ("CIFAR-C" if _is_arrays(root) else "corrupted images")


def _is_held(root: Path, corruption: str, severity: int, is_arrays: bool) -> bool:
    if is_arrays:
        return (root / f"{corruption}.npy").exists()
    return _severity_folder(root, corruption, severity) is not None


def _is_arrays(root: Path) -> bool:
    return any((root / name).exists() for name in (LABELS, *(f"{name}.npy" for name in KNOWN)))


def _severity_folder(root: Path, corruption: str, severity: int) -> Path | None:
    for place in (root, *(root / group for group in GROUPS)):
        folder = place / corruption / str(severity)
        if folder.is_dir() and class_folders(folder):
            return folder
    return None


def _check(root: Path, names: Sequence[str], severities: Sequence[int]) -> None:
    for name in names:
        check_known("corruption", name, KNOWN)
    for severity in severities:
        if isinstance(severity, bool) or severity not in SEVERITIES:
            raise InputError(f"severity must be 1, 2, 3, 4 or 5, got {severity!r}")
    if not root.is_dir():
        raise InputError(f"no corrupted set at {root}; give the folder that holds the corruptions")


@dataclass(frozen=True, eq=False)
class StackedImages(ArrayImages):
    """One severity: a fifth of a mapped file, which a process that is handed it maps for itself."""

    place: tuple[Path, str, int]

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_stack, self.place


def _open_stack(root: Path, corruption: str, severity: int) -> StackedImages:
    images = _read_stack(root / f"{corruption}.npy")
    count = len(images) // len(SEVERITIES)
    labels = _read_labels(root, count)
    return StackedImages(
        images=images[(severity - 1) * count : severity * count],
        labels=labels,
        classes=_class_names(root, labels),
        title=f"{root.name}/{corruption}.npy severity {severity}",
        numbers=range(count),
        place=(root, corruption, severity),
    )


def _read_stack(path: Path) -> np.ndarray:
    """The images of all severities, uint8 (5 N, 32, 32, 3)."""
    images = _map(path)
    size = images.shape
    is_whole = size[1:] == (32, 32, 3) and size[0] and size[0] % len(SEVERITIES) == 0
    if images.dtype != np.uint8 or not is_whole:
        shape = "x".join(map(str, size))
        raise InputError(
            f"{path} holds {images.dtype} of shape {shape}; expected uint8 5Nx32x32x3 "
            "(50000x32x32x3 as published); download it again"
        )
    return images


def _read_labels(root: Path, count: int) -> torch.Tensor:
    """One label per image, int64 (count,): stored once, or once for each severity."""
    path = root / LABELS
    labels = _map(path)
    sizes = (count,), (len(SEVERITIES) * count,)
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape not in sizes:
        shape = "x".join(map(str, labels.shape))
        raise InputError(
            f"{path} holds {labels.dtype} of shape {shape}; expected {count} or "
            f"{len(SEVERITIES) * count} integers for the images beside it; download it again"
        )
    blocks = np.array(labels, dtype=np.int64).reshape(-1, count)
    if (blocks != blocks[0]).any():
        raise InputError(
            f"labels in {path} differ between the severities, which show the same images; "
            "download it again"
        )
    return torch.from_numpy(blocks[0].copy())


def _class_names(root: Path, labels: torch.Tensor) -> tuple[str, ...]:
    """By the folder's name, or by the labels where it says nothing."""
    named = {"cifar-10-c": _TEN, "cifar-100-c": _HUNDRED}
    classes = named.get(set_name(root) or "", _TEN if int(labels.max()) < len(_TEN) else _HUNDRED)
    check_labels(root / LABELS, labels, classes, may_lack=False)
    return classes


def _map(path: Path) -> np.ndarray:
    if not path.is_file():
        raise InputError(f"{path} is missing; download it, or give the folder that holds it")
    try:
        return np.lib.format.open_memmap(path, mode="r")  # refuses arrays of objects
    except Exception as error:  # broken headers surface as almost any exception
        reason = cut(f"{type(error).__name__}: {error}")
        raise InputError(f"cannot read {path}: {reason}; download it again") from None
