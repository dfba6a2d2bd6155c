"""Look at a folder of data before training on it: layout, counts, damage, a contact sheet."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from pidformer.data.formats.masks import IGNORED
from pidformer.data.formats.table import FORMATS, Format, Task, find_format
from pidformer.data.formats.trees import TreePairs
from pidformer.data.pictures import UnreadableImage
from pidformer.data.sources import (
    TRAIN,
    VALIDATION,
    Decodable,
    ImageSource,
    Pair,
    SegmentSource,
    evenly,
)
from pidformer.data.text.files import SPLITS, text_blocks
from pidformer.errors import InputError, some
from pidformer.files import atomic_path, check_place, existing_folder

SHEET = 48
"""Pictures on a contact sheet."""
LISTED = 20
"""Classes that are listed by name; longer lists are given as a number."""
CELL, MARGIN, LINE, COLUMNS = 112, 8, 16, 8
_TRAINED = (TRAIN, "training")
_GROUND, _INK, _DAMAGED = (255, 255, 255), (36, 41, 47), (192, 57, 43)


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    name: str
    count: int
    classes: Mapping[str, int] = field(default_factory=dict)
    """How many of each class; empty where there is none."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    opened: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes among those decoded, as "64x64"."""
    damaged: tuple[str, ...] = ()
    """"name: why" for each that cannot be read."""
    error: str | None = None
    """Why the split as a whole cannot be read."""


@dataclass(frozen=True, kw_only=True)
class Items:
    """The things of one split, counted; those without a `source` (lines of text) have been read."""

    count: int
    classes: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    source: Decodable[Any] | None = None
    show: Callable[[Any], Image.Image] = lambda image: image
    """What a decoded thing looks like on the sheet."""
    caption: Callable[[int], str] = lambda index: ""
    unpaired: Sequence[int] = ()
    """Those known to lack a part, which are damaged."""


def pictures(source: ImageSource) -> Items:
    labels = source.labels.numpy()
    counts = np.bincount(labels[labels >= 0], minlength=len(source.classes))
    classes = dict(zip(source.classes, counts.tolist(), strict=True))
    if none := int((labels < 0).sum()):
        classes = {name: n for name, n in classes.items() if n} | {"(no class)": none}

    def caption(index: int) -> str:
        return source.classes[labels[index]] if labels[index] >= 0 else "no class"

    return Items(count=len(source), classes=classes, source=source, caption=caption)


def scenes(source: SegmentSource) -> Items:
    """Images with a mask each: shown above it, in the colours of the classes, 255 black."""
    colours = np.zeros((256, 3), dtype=np.uint8)
    colours[: len(source.palette)] = source.palette

    def show(pair: Pair) -> Image.Image:
        return Image.fromarray(np.concatenate([np.asarray(pair.image), colours[pair.mask]]))

    names = source.classes
    return Items(
        count=len(source),
        facts={"classes": ", ".join(names) if len(names) <= LISTED else len(names)},
        source=source,
        show=show,
        caption=lambda k: source.name(k).rpartition("/")[2].rpartition(".parquet ")[2],
        unpaired=source.unpaired if isinstance(source, TreePairs) else (),
    )


def lines(paths: list[Path]) -> Items:
    count, words, characters = 0, 0, 0
    different: set[str] = set()
    for block in text_blocks(paths):  # of whole lines, each with its newline
        found = block.split()
        count += block.count("\n")
        words += len(found)
        characters += len(block)
        different.update(found)
    facts = {
        "words": words,
        "different words": len(different),
        "tokens with <eos>": words + count,
        "characters": characters,
    }
    return Items(count=count, facts=facts)


ITEMS: dict[Task, Callable[[Any], Items]] = {
    "images": pictures,
    "benchmark": pictures,
    "segmentation": scenes,
    "text": lines,
}


@dataclass(frozen=True, kw_only=True)
class Checked:
    folder: Path
    layout: str
    splits: tuple[SplitReport, ...]
    notes: tuple[str, ...] = ()
    pictures: tuple[tuple[str, Image.Image | None], ...] = ()
    """For a contact sheet: captions and pictures, None for a damaged one."""

    @property
    def is_sound(self) -> bool:
        return not any(split.damaged or split.error for split in self.splits)

    def to_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "layout": self.layout,
            "sound": self.is_sound,
            "splits": [asdict(split) | {"damaged": list(split.damaged)} for split in self.splits],
            "notes": list(self.notes),
        }


def check_data(folder: str | Path, *, sample: int | None = 200) -> Checked:
    """Count a folder and decode `sample` things per split (None: all); report its damage."""
    if sample is not None and sample < 1:
        raise InputError(f"sample must be at least 1, got {sample}")
    folder = existing_folder(folder, "data")
    found = _recognise(folder)
    splits = found.splits(folder)
    reports, pictures = [], []
    shown = max(1, SHEET // len(splits))
    each = sample if sample is None else max(1, -(-sample // max(1, len(splits) // 5)))
    for name in splits:
        try:
            items = ITEMS[found.task](found.open(folder, name))
        except InputError as error:
            reports.append(SplitReport(name=name, count=0, error=str(error)))
            continue
        report, seen = _look(name, items, each, shown)
        reports.append(report)
        pictures += seen
    return Checked(
        folder=folder,
        layout=found.title_of(folder),
        splits=tuple(reports),
        notes=(*found.notes(folder), *_missing(found.task, splits)),
        pictures=tuple(pictures[:SHEET]),
    )


def _recognise(folder: Path) -> Format:
    """The format of `folder`, or an InputError that says what is allowed, and what it holds."""
    if (found := find_format(folder)) is not None:
        return found
    inner = [p for p in sorted(folder.iterdir()) if p.is_dir() and not p.name.startswith(".")]
    held = [f"{p.name} ({known.title_of(p)})" for p in inner[:50] if (known := find_format(p))]
    hint = f"it contains {', '.join(held)}: give one of these"
    names = ", ".join(known.name for known in reversed(FORMATS))
    raise InputError(f"no known layout in {folder}; {hint if held else f'known are {names}'}")


def _missing(task: Task, splits: Sequence[str]) -> list[str]:
    """The splits that training and evaluation would not find."""
    held = {name.rpartition("/")[2] for name in splits}
    pictured = {TRAIN: _TRAINED, "val": VALIDATION}
    wanted = {"images": pictured, "segmentation": pictured, "text": SPLITS}.get(task, {})
    return [f"no {split} split" for split, names in wanted.items() if held.isdisjoint(names)]


def _look(
    name: str, items: Items, sample: int | None, shown: int
) -> tuple[SplitReport, list[tuple[str, Image.Image | None]]]:
    report = SplitReport(name=name, count=items.count, classes=items.classes, facts=items.facts)
    if (source := items.source) is None:
        return report, []
    places = sorted({*evenly(items.count, sample), *items.unpaired})
    wanted = {places[i] for i in evenly(len(places), shown)}
    pictures: list[tuple[str, Image.Image | None]] = []
    damaged: list[str] = []
    sizes: Counter[str] = Counter()
    pixels = np.zeros(256, dtype=np.int64)  # of the masks, by label
    for place in places:
        try:
            thing = source.decode(place)
            picture = items.show(thing)
        except (UnreadableImage, InputError) as error:
            names_it = isinstance(error, InputError)
            damaged.append(str(error) if names_it else f"{source.name(place)}: {error}")
            if len(pictures) < shown:
                pictures.append((items.caption(place), None))
            continue
        if isinstance(thing, Pair):
            pixels += np.bincount(thing.mask.ravel(), minlength=256)
            thing = thing.image
        sizes["{}x{}".format(*thing.size)] += 1
        if place in wanted:
            pictures.append((f"{name} {items.caption(place)}", picture))
    report = replace(report, opened=sizes.total(), sizes=dict(sizes.most_common(5)))
    if pixels.any():
        report = _labelled(report, pixels, source.classes)
    return replace(report, damaged=tuple(damaged)), pictures


def _labelled(report: SplitReport, pixels: np.ndarray, classes: Sequence[str]) -> SplitReport:
    """How much of the masks counts, and which classes do not occur in those decoded.

    Those of a benchmark's test split are often blank.
    """
    share = 1 - pixels[IGNORED] / pixels.sum()
    absent = [name for name, n in zip(classes, pixels, strict=False) if not n]
    facts = {"labelled pixels": f"{share:.1%}", "classes without a pixel": some(absent)}
    report = replace(report, facts={**report.facts, **facts})
    if share or report.name not in _TRAINED:
        return report
    return replace(report, error="no pixel of its masks counts: all hold a number that is ignored")


def check_sheet(path: str | Path) -> None:
    """Refuse a name for a contact sheet; before the long work of checking a set, too."""
    if Path(path).suffix.lower() != ".png":
        raise InputError(f"cannot write a contact sheet to {path}: the name must end in .png")
    check_place(Path(path))


def contact_sheet(pictures: Sequence[tuple[str, Image.Image | None]], path: str | Path) -> None:
    """Write the pictures with their captions to `path` (PNG); a damaged one is a red box."""
    check_sheet(path)
    if not pictures:
        raise InputError("there is no picture to show; a contact sheet is of images")
    columns = min(COLUMNS, len(pictures))
    rows = -(-len(pictures) // columns)
    step = CELL + MARGIN
    sheet = Image.new("RGB", (columns * step + MARGIN, rows * (step + LINE) + MARGIN), _GROUND)
    pen = ImageDraw.Draw(sheet)
    for place, (caption, picture) in enumerate(pictures):
        row, column = divmod(place, columns)
        left, top = MARGIN + column * step, MARGIN + row * (step + LINE)
        if picture is None:
            pen.rectangle((left, top, left + CELL - 1, top + CELL - 1), outline=_DAMAGED, width=3)
            pen.line((left, top, left + CELL - 1, top + CELL - 1), fill=_DAMAGED, width=3)
        else:
            small = _fitted(picture.convert("RGB"))
            sheet.paste(small, (left + (CELL - small.width) // 2, top + (CELL - small.height) // 2))
        while caption and pen.textlength(caption) > CELL:
            caption = caption[:-1]
        pen.text((left, top + CELL + 2), caption, fill=_INK)
    with atomic_path(path) as temporary:
        sheet.save(temporary, format="PNG")


def _fitted(picture: Image.Image) -> Image.Image:
    """The picture at the size of a cell; small ones keep their pixels sharp."""
    scale = CELL / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    how = Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BICUBIC
    return picture.resize(size, how)
