"""Image sets as folders: DIR/{train,val}/<class>/*.JPEG, as ImageNet is stored."""

import copy
import os
import re
import warnings
from pathlib import Path
from typing import Self

import numpy as np
import torch
from PIL import Image

from pidformer.data.pictures import read_picture
from pidformer.data.sources import TRAIN, VALIDATION, part_of, stored_names
from pidformer.errors import InputError, some

SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")

HELD_OUT_NOTE = "one in ten images of each class is held out"
_NO_CLASSES = {"images", "annotations", "masks", "labels"}
"""Folders of a segmentation set, not of classes."""


class FolderImages:
    """Files under one folder per class, in sorted order; `title` names the root in messages."""

    channels = 3

    def __init__(self, root: Path, classes: tuple[str, ...], title: str | None = None) -> None:
        self.root = root
        self.title = root.name if title is None else title
        self.classes = classes
        files = [_image_files(root / name) for name in classes]
        empty = [name for name, names in zip(classes, files, strict=True) if not names]
        if empty:
            raise InputError(
                f"{len(empty)} of {len(classes)} class folders in {root} hold no image: "
                f"{some(empty)}; remove them or add files ({', '.join(SUFFIXES)})"
            )
        counts = torch.tensor([len(names) for names in files])
        self.labels = torch.repeat_interleave(torch.arange(len(classes)), counts)
        # One block of bytes: a million str objects would be copied into every worker process,
        # page by page, as their reference counts change.
        self._files = np.array([os.fsencode(name) for names in files for name in names])

    def part(self, split: str) -> Self:
        """A split of a set that has none (`part_of`)."""
        chosen, found = part_of(self._files, self.labels.numpy(), split), copy.copy(self)
        found._files, found.labels = self._files[chosen], self.labels[chosen]
        return found

    def __len__(self) -> int:
        return len(self._files)

    def name(self, index: int) -> str:
        return f"{self.title}/{os.fsdecode(self._files[index])}"

    def decode(self, index: int) -> Image.Image:
        return read_picture(self.root / os.fsdecode(self._files[index]))


def folder_splits(folder: Path) -> list[str]:
    """The names of the splits that are there, or that the set is divided into."""
    if is_whole(folder):
        return [TRAIN, "val"]
    return [name for name in (TRAIN, *VALIDATION) if (folder / name).is_dir()]


def is_whole(folder: Path) -> bool:
    """Whether this is a set without splits: class folders, with images, by themselves."""
    if not folder.is_dir() or any((folder / name).is_dir() for name in (TRAIN, *VALIDATION)):
        return False
    classes = class_folders(folder)
    held = [_holds_pictures(folder / name) for name in classes]
    return len({*classes} - _NO_CLASSES) > 1 and True in held and False not in held


def _holds_pictures(folder: Path) -> bool | None:
    """None for an empty class: `FolderImages` names it."""
    is_empty = True
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_picture(entry.name):
                return True
            is_empty = is_empty and entry.name.startswith(".")
    return None if is_empty else False


def is_picture(name: str) -> bool:
    """By its name, hidden files left out: macOS writes a "._1.jpg" beside "1.jpg"."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def is_imagenet(folder: Path) -> bool:
    """Whether all classes of the first split have WordNet ids for names."""
    classes = class_folders(folder if is_whole(folder) else folder / folder_splits(folder)[0])
    return bool(classes) and all(re.fullmatch(r"n\d{8}", name) for name in classes)


def open_folders(folder: Path, split: str) -> FolderImages:
    """The split's folder; of a set without splits, one in ten images of each class is held out."""
    if split in (TRAIN, "val") and is_whole(folder):
        warnings.warn(f"{folder} has no val/: {HELD_OUT_NOTE}", stacklevel=2)
        return FolderImages(folder, class_folders(folder)).part(split)
    root = _split_folder(folder, split)
    if root is None:
        held = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        whole = f"; {folder / TRAIN} by itself is divided" if is_whole(folder / TRAIN) else ""
        raise InputError(
            f"no split {split!r} in {folder}; it holds the folders {some(held)}{whole}"
        )
    classes = class_folders(root)
    if not classes:
        raise InputError(f"no class folder in {root}; expected {root}/<class>/<image>.JPEG")
    for other in filter(None, (_split_folder(folder, name) for name in (TRAIN, "val"))):
        here, there = set(classes), set(class_folders(other))
        sides = (root, here - there), (other, there - here)
        if only := [f"only in {p.name}: {some(sorted(names))}" for p, names in sides if names]:
            raise InputError(
                f"class folders of {root} and {other} differ, so labels would not match; "
                f"{'; '.join(only)}"
            )
    return FolderImages(root, classes)


def _split_folder(folder: Path, split: str) -> Path | None:
    paths = (folder / name for name in stored_names(split))
    return next((path for path in paths if path.is_dir()), None)


def class_folders(root: Path) -> tuple[str, ...]:
    """The names of the folders in `root`, sorted, without hidden ones and what macOS adds."""
    with os.scandir(root) as entries:
        names = (entry.name for entry in entries if entry.is_dir())
        return tuple(sorted(name for name in names if name[0] != "." and name != "__MACOSX"))


def _image_files(folder: Path) -> list[str]:
    """Paths below the class folder's parent, sorted; sub-folders count, what is hidden does not."""
    found = []
    seen = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        identity = (status := os.stat(place)).st_dev, status.st_ino
        if identity in seen:  # a link to a folder above it would go round and round
            folders.clear()
            continue
        seen.add(identity)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        inner = os.path.relpath(place, folder.parent)
        found += [os.path.join(inner, name) for name in names if is_picture(name)]
    return sorted(found)
