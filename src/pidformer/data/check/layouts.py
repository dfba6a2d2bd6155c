"""Which layout a folder has, told by what is in it, and its splits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pidformer.data.check.items import Items, Pictures, Scenes, Text
from pidformer.data.cifar import cifar_folders, open_cifar
from pidformer.data.folders import SUFFIXES, class_folders, has_folders, open_folders
from pidformer.data.parquet import has_parquet, open_parquet
from pidformer.data.published.arrays import LABELS
from pidformer.data.published.corrupted import (
    KNOWN,
    SEVERITIES,
    missing_corruptions,
    open_corrupted,
)
from pidformer.data.published.places import set_name
from pidformer.data.published.shifted import open_shift
from pidformer.data.segmentation.trees import has_cityscapes
from pidformer.data.splits import TRAIN, VALIDATION
from pidformer.data.text.files import SPLITS, find_text, text_blocks
from pidformer.errors import InputError

Open = Callable[[], Items]
"""Opens a split; an InputError from it is damage of that split."""


class Layout(NamedTuple):
    """A layout that was recognised."""

    name: str
    splits: dict[str, Open]
    notes: tuple[str, ...] = ()


def recognise(folder: Path) -> Layout:
    """The layout of `folder`, or an InputError that says what is allowed, and what it holds."""
    if not folder.exists():
        raise InputError(f"no data at {folder}; give an existing folder")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file; give the folder that holds the data")
    found = _recognise(folder)
    if found is not None:
        return found
    inner = [p for p in sorted(folder.iterdir()) if p.is_dir() and not p.name.startswith(".")]
    known = [f"{p.name} ({layout.name})" for p in inner[:50] if (layout := _recognise(p))]
    hint = f"; it contains {', '.join(known)}: give one of these" if known else ""
    raise InputError(f"no known layout in {folder}{hint or '; known are ' + ', '.join(_KNOWN)}")


_KNOWN = (
    "ImageNet folders",
    "ImageNet-A/R/O/C",
    "Tiny-ImageNet-C",
    "CIFAR and CIFAR-C",
    "Parquet (image, label) or (image, mask)",
    "ADE20K",
    "Cityscapes",
    "text (wiki.train.tokens or train.txt)",
)


def _recognise(folder: Path) -> Layout | None:
    for attempt in (_text, _ade20k, _cityscapes, _cifar, _published, _parquet, _books, _folders):
        if (found := attempt(folder)) is not None:
            return found
    return None


def _text(folder: Path) -> Layout | None:
    """A file for each split; one of them is enough to tell."""
    found = _texts(folder)
    is_told = any(paths[0].parent == folder for paths in found.values())
    return _as_text(folder, found) if is_told else None


def _books(folder: Path) -> Layout | None:
    """A folder of files for each split, none of them of images, which have such folders too."""
    found = _texts(folder)
    entries = [entry for paths in found.values() for entry in paths[0].parent.iterdir()]
    others = (*SUFFIXES, ".parquet")
    is_text = not any(entry.is_dir() or entry.suffix.lower() in others for entry in entries)
    return _as_text(folder, found) if found and is_text else None


def _texts(folder: Path) -> dict[str, list[Path]]:
    """The files of each split, as training finds them."""
    found = {}
    for split in SPLITS:
        with suppress(InputError):
            found[split] = find_text(folder, split)
    return found


def _as_text(folder: Path, found: dict[str, list[Path]]) -> Layout:
    splits: dict[str, Open] = {
        split: lambda paths=paths: _read_text(paths)  # type: ignore[misc]
        for split, paths in found.items()
    }
    is_wiki = any(folder.glob("wiki.*.tokens*"))
    lacking = [split for split in SPLITS if split not in splits]
    notes = (f"no {' and no '.join(lacking)} text",) if lacking else ()
    return Layout("WikiText" if is_wiki else "text", splits, notes)


def _read_text(paths: list[Path]) -> Text:
    lines, words, characters = 0, 0, 0
    different: set[str] = set()
    for block in text_blocks(paths):  # of whole lines, each with its newline
        found = block.split()
        lines += block.count("\n")
        words += len(found)
        characters += len(block)
        different.update(found)
    facts = {
        "words": words,
        "different words": len(different),
        "tokens with <eos>": words + lines,
        "characters": characters,
    }
    return Text(paths[0] if len(paths) == 1 else paths[0].parent, lines, facts)


def _ade20k(folder: Path) -> Layout | None:
    for root in (folder, folder / "ADEChallengeData2016"):
        if (root / "images").is_dir() and (root / "annotations").is_dir():
            splits: dict[str, Open] = {
                place.name: lambda place=place, root=root: _scenes(root, place.name)  # type: ignore[misc]
                for place in sorted((root / "images").iterdir())
                if place.is_dir()
            }
            return Layout("ADE20K", splits) if splits else None
    return None


def _scenes(root: Path, split: str) -> Scenes:
    images = sorted(p for p in (root / "images" / split).iterdir() if p.suffix.lower() in SUFFIXES)
    if not images:
        raise InputError(f"no image in {root / 'images' / split}")
    masks = [root / "annotations" / split / f"{p.stem}.png" for p in images]
    return Scenes(
        tuple(f"{split}/{p.name}" for p in images),
        tuple(images),
        tuple(mask if mask.is_file() else None for mask in masks),
    )


def _cityscapes(folder: Path) -> Layout | None:
    if not has_cityscapes(folder):
        return None
    splits: dict[str, Open] = {
        place.name: lambda place=place: _city_scenes(folder, place.name)  # type: ignore[misc]
        for place in sorted((folder / "leftImg8bit").iterdir())
        if place.is_dir()
    }
    return Layout("Cityscapes", splits) if splits else None


def _city_scenes(root: Path, split: str) -> Scenes:
    images = sorted((root / "leftImg8bit" / split).glob("*/*_leftImg8bit.png"))
    if not images:
        raise InputError(f"no image in {root / 'leftImg8bit' / split}")
    places = [root / "gtFine" / split / image.parent.name for image in images]
    names = [image.name.replace("_leftImg8bit.png", "_gtFine_labelIds.png") for image in images]
    masks = [place / name for place, name in zip(places, names, strict=True)]
    return Scenes(
        tuple(f"{split}/{image.parent.name}/{image.name}" for image in images),
        tuple(images),
        tuple(mask if mask.is_file() else None for mask in masks),
    )


def _cifar(folder: Path) -> Layout | None:
    places = cifar_folders(folder)
    if not places:
        return None
    splits: dict[str, Open] = {}
    for place in places:
        for split in (TRAIN, "test"):
            title = split if len(places) == 1 else f"{place.name}/{split}"
            splits[title] = lambda p=place, s=split: Pictures(open_cifar(p, s))  # type: ignore[misc]
    names = {"cifar-10-batches-py": "CIFAR-10", "cifar-100-python": "CIFAR-100"}
    return Layout(" and ".join(names[p.name] for p in places), splits)


def _published(folder: Path) -> Layout | None:
    name = set_name(folder)
    is_arrays = (folder / LABELS).exists() and any((folder / f"{n}.npy").exists() for n in KNOWN)
    if name in ("imagenet-a", "imagenet-r", "imagenet-o"):
        title = {"a": "ImageNet-A", "r": "ImageNet-R", "o": "ImageNet-O"}[name[-1]]
        return Layout(title, {"all": lambda: Pictures(open_shift(folder))})
    held = list(_corruptions(folder))
    if not held and not is_arrays:
        return None
    splits: dict[str, Open] = {
        f"{corruption}/{severity}": (
            lambda c=corruption, s=severity: Pictures(open_corrupted(folder, c, s))  # type: ignore[misc]
        )
        for corruption, severity in held
    }
    try:
        lacking = missing_corruptions(folder)
    except InputError as error:
        lacking = []
        notes: tuple[str, ...] = (str(error),)
    else:
        notes = (f"of the 15 corruptions it lacks {', '.join(lacking)}",) if lacking else ()
    titles = {
        "imagenet-c": "ImageNet-C",
        "tiny-imagenet-c": "Tiny-ImageNet-C",
        "cifar-10-c": "CIFAR-10-C",
        "cifar-100-c": "CIFAR-100-C",
    }
    title = titles.get(name or "", "CIFAR-C" if is_arrays else "corrupted images")
    return Layout(title, splits, notes)


def _corruptions(folder: Path) -> Iterator[tuple[str, int]]:
    groups = ("", "noise", "blur", "weather", "digital", "extra")
    for corruption in KNOWN:
        for severity in SEVERITIES:
            places = (folder / group / corruption / str(severity) for group in groups)
            if (folder / f"{corruption}.npy").exists() or any(
                place.is_dir() and class_folders(place) for place in places
            ):
                yield corruption, severity


_SHARD = re.compile(r"(.+?)(-\d{5}-of-\d{5})?\.parquet")


def _parquet(folder: Path) -> Layout | None:
    if not has_parquet(folder):
        return None
    files = [*sorted(folder.glob("*.parquet")), *sorted((folder / "data").glob("*.parquet"))]
    by_split: dict[str, list[Path]] = {}
    for path in files:
        match = _SHARD.fullmatch(path.name)
        by_split.setdefault(match[1] if match else path.stem, []).append(path)
    columns: set[str] = set()
    for path in files:  # the first that can be read says what the set is
        try:
            columns = set(pq.read_schema(path).names)
            break
        except (pa.ArrowException, OSError):
            continue
    order = sorted(by_split, key=lambda name: (name != TRAIN, name not in VALIDATION, name))
    if "mask" in columns:
        names = _class_names(folder)
        return Layout(
            "segmentation Parquet",
            {s: lambda s=s: _masked(by_split[s], names) for s in order},  # type: ignore[misc]
        )
    return Layout(
        "Parquet image set",
        {s: lambda s=s: Pictures(open_parquet(folder, s)) for s in order},  # type: ignore[misc]
    )


def _masked(files: list[Path], names: dict[int, str]) -> Scenes:
    images: list[Path | bytes] = []
    masks: list[Path | bytes | None] = []
    titles: list[str] = []
    for path in files:
        try:
            table = pq.read_table(path, columns=["image", "mask"])
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
        for row, (image, mask) in enumerate(
            zip(table["image"].to_pylist(), table["mask"].to_pylist(), strict=True)
        ):
            images.append(_bytes(image) or b"")
            masks.append(_bytes(mask))
            titles.append(f"{path.name} row {row}")
    facts = {"classes": ", ".join(names.values())} if names else {}
    return Scenes(tuple(titles), tuple(images), tuple(masks), facts=facts)


def _bytes(cell: object) -> bytes | None:
    found = cell.get("bytes") if isinstance(cell, dict) else cell
    return found if isinstance(found, bytes) else None


def _class_names(folder: Path) -> dict[int, str]:
    try:
        found = json.loads((folder / "classes.json").read_text())
    except (OSError, ValueError):
        return {}
    if isinstance(found, dict):
        found = found.get("classes", list(found.values()))
    return dict(enumerate(map(str, found))) if isinstance(found, list) else {}


def _folders(folder: Path) -> Layout | None:
    if not has_folders(folder):
        return None
    splits: dict[str, Open] = {
        split: lambda split=split: Pictures(open_folders(folder, split))  # type: ignore[misc]
        for split in (TRAIN, *VALIDATION)
        if (folder / split).is_dir()
    }
    classes = class_folders(folder / next(iter(splits)))
    is_imagenet = bool(classes) and all(re.fullmatch(r"n\d{8}", name) for name in classes)
    title = "ImageNet folders" if is_imagenet else "image folders"
    missing = [] if TRAIN in splits else [TRAIN]
    return Layout(title, splits, tuple(f"no {name} split" for name in missing))


def evenly(count: int, wanted: int | None) -> list[int]:
    """`wanted` places spread over `count`, both ends included; all for None."""
    if wanted is None or wanted >= count:
        return list(range(count))
    return np.unique(np.linspace(0, count - 1, wanted).round().astype(int)).tolist()
