"""Which layout a folder has, told by what is in it, and its splits."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable, Iterator
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
from pidformer.data.splits import TRAIN, VALIDATION
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
    "text (wiki.train.tokens or train.txt)",
)


def _recognise(folder: Path) -> Layout | None:
    for attempt in (_text, _ade20k, _cifar, _published, _parquet, _folders):
        if (found := attempt(folder)) is not None:
            return found
    return None


def _text(folder: Path) -> Layout | None:
    splits: dict[str, Open] = {}
    for split in ("train", "valid", "test"):
        names = (f"wiki.{split}.tokens", f"{split}.txt", f"{split}.tokens")
        paths = [folder / f"{name}{end}" for name in names for end in ("", ".xz")]
        path = next((path for path in paths if path.is_file()), None)
        if path is not None:
            splits[split] = lambda path=path: _read_text(path)  # type: ignore[misc]
    if not splits:
        return None
    is_wiki = any(folder.glob("wiki.*.tokens*"))
    lacking = [split for split in ("train", "valid", "test") if split not in splits]
    notes = (f"no {' and no '.join(lacking)} text",) if lacking else ()
    return Layout("WikiText" if is_wiki else "text", splits, notes)


def _read_text(path: Path) -> Text:
    try:
        data = path.read_bytes()
        text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8")
    except (lzma.LZMAError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    lines = text.removesuffix("\n").split("\n")
    words = [word for line in lines for word in line.split()]
    if not words:
        raise InputError(f"{path} holds no text")
    facts = {
        "words": len(words),
        "different words": len(set(words)),
        "tokens with <eos>": len(words) + len(lines),
        "characters": len(text),
    }
    return Text(path, len(lines), facts)


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
