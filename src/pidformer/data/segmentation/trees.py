"""Segmentation sets as trees of files: ADE20K's and Cityscapes'."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import numpy as np

from pidformer.data.folders import SUFFIXES
from pidformer.data.pictures import read_picture
from pidformer.data.segmentation.masks import (
    IGNORED,
    Legend,
    check_same_size,
    label_table,
    plain_table,
    read_legend,
    read_mask,
    to_labels,
)
from pidformer.data.segmentation.pair import Pair
from pidformer.errors import InputError

ADE_FOLDER = "ADEChallengeData2016"
ADE_SPLITS = {"train": "training", "val": "validation"}
SHOWN = 10

# Cityscapes' benchmark: labelIds of its 19 classes, in the order of their trainIds.
CITY_CLASSES: tuple[tuple[int, str, tuple[int, int, int]], ...] = (
    (7, "road", (128, 64, 128)),
    (8, "sidewalk", (244, 35, 232)),
    (11, "building", (70, 70, 70)),
    (12, "wall", (102, 102, 156)),
    (13, "fence", (190, 153, 153)),
    (17, "pole", (153, 153, 153)),
    (19, "traffic light", (250, 170, 30)),
    (20, "traffic sign", (220, 220, 0)),
    (21, "vegetation", (107, 142, 35)),
    (22, "terrain", (152, 251, 152)),
    (23, "sky", (70, 130, 180)),
    (24, "person", (220, 20, 60)),
    (25, "rider", (255, 0, 0)),
    (26, "car", (0, 0, 142)),
    (27, "truck", (0, 0, 70)),
    (28, "bus", (0, 60, 100)),
    (31, "train", (0, 80, 100)),
    (32, "motorcycle", (0, 0, 230)),
    (33, "bicycle", (119, 11, 32)),
)
CITY_LABELS = 34


class TreePairs:
    """Pairs of files below one folder, with a table from stored numbers to labels."""

    def __init__(
        self, root: Path, pairs: list[tuple[str, str]], legend: Legend, table: np.ndarray
    ) -> None:
        self.root = root
        self.classes, self.palette = legend
        self._table = table
        # One block of bytes, as in FolderImages: workers then share it.
        self._files = np.array([[os.fsencode(a), os.fsencode(b)] for a, b in pairs])

    def __len__(self) -> int:
        return len(self._files)

    def name(self, index: int) -> str:
        return os.fsdecode(self._files[index, 0])

    def decode(self, index: int) -> Pair:
        image_name, mask_name = (os.fsdecode(name) for name in self._files[index])
        image = read_picture(self.root / image_name)
        mask = read_mask(self.root / mask_name)
        check_same_size(image, mask, image_name)
        return Pair(image, to_labels(mask, self._table, mask_name, len(self.classes)))


def ade_root(folder: Path) -> Path | None:
    """The folder that holds images/ and annotations/, if there is one."""
    for root in (folder, folder / ADE_FOLDER):
        if (root / "images").is_dir() and (root / "annotations").is_dir():
            return root
    return None


def open_ade20k(root: Path, split: str) -> TreePairs:
    """root/{images,annotations}/{training,validation}/NAME.{jpg,png}; labels from 1, 0 ignored."""
    stored = ADE_SPLITS.get(split, split)
    places = {kind: root / kind / stored for kind in ("images", "annotations")}
    for place in places.values():
        if not place.is_dir():
            held = sorted(entry.name for entry in place.parent.iterdir() if entry.is_dir())
            raise InputError(
                f"no split {split!r} in {root}: {place} is not there, only {', '.join(held)}"
            )
    images, masks = (
        {Path(name).stem: f"{kind}/{stored}/{name}" for name in _pictures(place)}
        for kind, place in places.items()
    )
    legend = read_legend(root / "classes.json") if (root / "classes.json").exists() else ade20k()
    pairs = _paired(images, masks, root)
    return TreePairs(root, pairs, legend, plain_table(len(legend.classes), first=1))


@cache
def ade20k() -> Legend:
    """The 150 classes of ADE20K's scene parsing benchmark and their colours."""
    fields = json.loads((Path(__file__).parent / "ade20k.json").read_text())["classes"]
    names, colours = zip(*fields, strict=True)
    return Legend(tuple(names), np.array(colours, dtype=np.uint8))


def has_cityscapes(folder: Path) -> bool:
    return (folder / "leftImg8bit").is_dir() and (folder / "gtFine").is_dir()


def open_cityscapes(root: Path, split: str) -> TreePairs:
    """root/leftImg8bit/SPLIT/CITY/*_leftImg8bit.png with root/gtFine/SPLIT/CITY/*_labelIds.png."""
    found: list[dict[str, str]] = []
    for kind, ending in (("leftImg8bit", "_leftImg8bit.png"), ("gtFine", "_gtFine_labelIds.png")):
        place = root / kind / split
        if not place.is_dir():
            held = sorted(entry.name for entry in place.parent.iterdir() if entry.is_dir())
            raise InputError(
                f"no split {split!r} in {root}: {place} is not there, only {', '.join(held)}"
            )
        files = (path.relative_to(root).as_posix() for path in sorted(place.glob(f"*/*{ending}")))
        found.append({Path(name).name.removesuffix(ending): name for name in files})
    names = tuple(name for _, name, _ in CITY_CLASSES)
    palette = np.array([colour for _, _, colour in CITY_CLASSES], dtype=np.uint8)
    known = {stored: label for label, (stored, _, _) in enumerate(CITY_CLASSES)}
    numbers = [(stored, known.get(stored, IGNORED)) for stored in range(CITY_LABELS)]
    table = label_table([*numbers, (IGNORED, IGNORED)])
    return TreePairs(root, _paired(found[0], found[1], root), Legend(names, palette), table)


def _pictures(folder: Path) -> list[str]:
    return sorted(
        name
        for name in os.listdir(folder)
        if name.lower().endswith(SUFFIXES) and not name.startswith(".")
    )


def _paired(images: dict[str, str], masks: dict[str, str], root: Path) -> list[tuple[str, str]]:
    """Images with their masks, by name; those without a partner are named, up to ten."""
    alone = [images[stem] for stem in sorted(images.keys() - masks.keys())]
    alone += [masks[stem] for stem in sorted(masks.keys() - images.keys())]
    if alone:
        more = f" and {len(alone) - SHOWN} more" if len(alone) > SHOWN else ""
        raise InputError(
            f"{len(alone)} file(s) in {root} have no partner of the same name (image or mask): "
            f"{', '.join(alone[:SHOWN])}{more}"
        )
    if not images:
        raise InputError(f"{root} holds no images for this split")
    return [(images[stem], masks[stem]) for stem in sorted(images)]
