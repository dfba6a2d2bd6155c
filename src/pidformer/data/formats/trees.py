"""Segmentation sets as trees of files: ADE20K's and Cityscapes'."""

import copy
import os
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Self

import numpy as np

from pidformer.data.formats.folders import class_folders, is_picture
from pidformer.data.formats.masks import Legend, label_table, labelled_pair, read_legend
from pidformer.data.pictures import UnreadableImage
from pidformer.data.sources import Pair, part_of
from pidformer.errors import InputError, some
from pidformer.fields import read_json

ADE_FOLDER = "ADEChallengeData2016"
ADE_KINDS = ("images", "annotations")
ADE_SPLITS = {"train": "training", "val": "validation"}
CITY_KINDS = {"leftImg8bit": "_leftImg8bit.png", "gtFine": "_gtFine_labelIds.png"}

CITY_LABELS = 34
"""Numbers that masks may hold; those of no class of the benchmark are ignored."""


class TreePairs:
    """Pairs of files below one folder, `images` and `masks` by shared name, and a table of labels.

    A file without a partner cannot be read; `check_partners` refuses a set that has one.
    """

    def __init__(
        self,
        root: Path,
        images: dict[str, str],
        masks: dict[str, str],
        legend: Legend,
        table: np.ndarray,
    ) -> None:
        if not images:
            raise InputError(f"{root} holds no images for this split")
        self.root = root
        self.classes, self.palette = legend
        self._table = table
        stems = [*sorted(images), *sorted(masks.keys() - images.keys())]
        # One block of bytes, as in FolderImages: workers then share it.
        self._files = np.array(
            [[os.fsencode(kind.get(stem, "")) for kind in (images, masks)] for stem in stems]
        )
        self.unpaired = np.flatnonzero((self._files == b"").any(axis=1)).tolist()

    def part(self, split: str) -> Self:
        """A split of a set that has none (`part_of`)."""
        self.check_partners()
        chosen = part_of(self._files[:, 0], np.zeros(len(self)), split)
        found = copy.copy(self)
        found._files = self._files[chosen]
        return found

    def __len__(self) -> int:
        return len(self._files)

    def name(self, index: int) -> str:
        """The path of the image (or of a mask without one) below the folder of its kind."""
        return self._path(index).partition("/")[2]

    def _path(self, index: int) -> str:
        image, mask = self._files[index]
        return os.fsdecode(image or mask)

    def decode(self, index: int) -> Pair:
        image, mask = (os.fsdecode(name) for name in self._files[index])
        if not (image and mask):
            raise UnreadableImage(f"it has no {'mask' if image else 'image'}")
        return labelled_pair(self.root / image, self.root / mask, self._table, image, mask)

    def check_partners(self) -> None:
        """Refuse images without a mask and masks without an image, and name up to ten."""
        if alone := [self._path(index) for index in self.unpaired]:
            raise InputError(
                f"{len(alone)} file(s) in {self.root} have no partner of the same name "
                f"(image or mask): {some(alone, 10)}"
            )


def _ade_root(folder: Path) -> Path:
    """The folder that holds images/ and annotations/, if there is one, or `folder`."""
    inner = folder / ADE_FOLDER
    return inner if not _both(folder, ADE_KINDS) and _both(inner, ADE_KINDS) else folder


def ade20k_splits(folder: Path) -> list[str]:
    root = _ade_root(folder)
    held = _splits(root, ADE_KINDS)
    return held or (list(ADE_SPLITS) if _both(root, ADE_KINDS) else [])


def open_ade20k(folder: Path, split: str) -> TreePairs:
    """DIR/{images,annotations}/{training,validation}/NAME.{jpg,png}; labels from 1, 0 ignored.

    Where images/ and annotations/ hold the files themselves, one in ten images is held out.
    """
    root = _ade_root(folder)
    is_whole = split in ADE_SPLITS and not _splits(root, ADE_KINDS)
    stored = "" if is_whole else ADE_SPLITS.get(split, split)
    images, masks = (
        _by_name(
            (Path(name).stem, Path(kind, stored, name).as_posix())
            for name in sorted(os.listdir(_place(root, kind, stored, split)))
            if is_picture(name)
        )
        for kind in ADE_KINDS
    )
    own = root / "classes.json"
    legend = read_legend(own) if own.exists() else _benchmark("ade20k")[0]
    table = label_table(range(1, len(legend.classes) + 1), ignored=(0,))
    pairs = TreePairs(root, images, masks, legend, table)
    return pairs.part(split) if is_whole else pairs


@cache
def _benchmark(name: str) -> tuple[Legend, list[int]]:
    """The classes of a set's benchmark, and the numbers its masks store them as, where told."""
    fields = read_json(Path(__file__).with_name(f"{name}.json"))
    names, colours = zip(*fields["classes"], strict=True)
    return Legend(tuple(names), np.array(colours, dtype=np.uint8)), fields.get("stored", [])


def cityscapes_splits(folder: Path) -> list[str]:
    return _splits(folder, CITY_KINDS)


def open_cityscapes(root: Path, split: str) -> TreePairs:
    """DIR/leftImg8bit/SPLIT/CITY/*_leftImg8bit.png with DIR/gtFine/SPLIT/CITY/*_labelIds.png."""
    found: list[dict[str, str]] = []
    for kind, ending in CITY_KINDS.items():
        place = _place(root, kind, split, split)
        files = (path.relative_to(root).as_posix() for path in place.glob(f"*/[!.]*{ending}"))
        found.append(_by_name((Path(name).name.removesuffix(ending), name) for name in files))
    legend, numbers = _benchmark("cityscapes")
    table = label_table(numbers, ignored=range(CITY_LABELS))
    return TreePairs(root, found[0], found[1], legend, table)


def _by_name(files: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Files by the name that a picture shares with its mask; two of one name are refused."""
    found: dict[str, str] = {}
    for name, path in files:
        if found.setdefault(name, path) != path:
            raise InputError(f"{found[name]} and {path} have one name; rename one, or remove it")
    return found


def _both(root: Path, kinds: Iterable[str]) -> bool:
    return all((root / kind).is_dir() for kind in kinds)


def _splits(root: Path, kinds: Sequence[str] | dict[str, str]) -> list[str]:
    """The folders of the first kind, that of the images."""
    return [*class_folders(root / next(iter(kinds)))] if _both(root, kinds) else []


def _place(root: Path, kind: str, stored: str, split: str) -> Path:
    place = root / kind / stored
    if not place.is_dir():
        held = ", ".join(class_folders(place.parent))
        raise InputError(f"no split {split!r} in {root}: {place} is not there, only {held}")
    return place
