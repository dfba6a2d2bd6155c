"""A split as a check sees it: things with names that can be opened one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from PIL import Image

from pidformer.data.formats.table import Task
from pidformer.data.formats.trees import TreePairs
from pidformer.data.sources import ImageSource, SegmentSource
from pidformer.data.text.files import text_blocks

LISTED = 20
"""Classes that are listed by name; of more, the number is given."""


class Opened(NamedTuple):
    """A thing that could be read: its picture for the sheet, and its own size."""

    picture: Image.Image
    size: tuple[int, int]


class Items(Protocol):
    """Things of one split."""

    @property
    def classes(self) -> Mapping[str, int]:
        """How many of each class; empty where there is none."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """Further counts."""
        ...

    @property
    def unpaired(self) -> Sequence[int]:
        """Those known to lack a part, which are damaged."""
        ...

    def __len__(self) -> int: ...
    def name(self, index: int) -> str: ...
    def caption(self, index: int) -> str: ...
    def open(self, index: int) -> Opened | None:
        """A picture of it, None for text; raises as a source's `decode` when it is damaged."""
        ...


@dataclass(frozen=True)
class Pictures:
    """A labelled image set."""

    source: ImageSource
    facts: ClassVar[Mapping[str, Any]] = {}
    unpaired: ClassVar[Sequence[int]] = ()

    def __len__(self) -> int:
        return len(self.source)

    @property
    def classes(self) -> Mapping[str, int]:
        labels = self.source.labels.numpy()
        counts = np.bincount(labels[labels >= 0], minlength=len(self.source.classes))
        found = dict(zip(self.source.classes, counts.tolist(), strict=True))
        if none := int((labels < 0).sum()):
            return {name: n for name, n in found.items() if n} | {"(no class)": none}
        return found

    def name(self, index: int) -> str:
        return self.source.name(index)

    def caption(self, index: int) -> str:
        label = int(self.source.labels[index])
        return self.source.classes[label] if label >= 0 else "no class"

    def open(self, index: int) -> Opened:
        picture = self.source.decode(index)
        return Opened(picture, picture.size)


@dataclass(frozen=True)
class Scenes:
    """Images with a mask of classes each."""

    source: SegmentSource
    classes: ClassVar[Mapping[str, int]] = {}

    def __len__(self) -> int:
        return len(self.source)

    @property
    def facts(self) -> Mapping[str, Any]:
        names = self.source.classes
        return {"classes": ", ".join(names) if len(names) <= LISTED else len(names)}

    def name(self, index: int) -> str:
        return self.source.name(index)

    @property
    def unpaired(self) -> Sequence[int]:
        return self.source.unpaired if isinstance(self.source, TreePairs) else ()

    def caption(self, index: int) -> str:
        return self.name(index).rpartition("/")[2].rpartition(".parquet ")[2]

    def open(self, index: int) -> Opened:
        """The image above its mask in the colours of the classes; unlabelled pixels are black."""
        image, mask = self.source.decode(index)
        colours = np.zeros((256, 3), dtype=np.uint8)
        colours[: len(self.source.palette)] = self.source.palette
        sheet = Image.new("RGB", (image.width, 2 * image.height))
        sheet.paste(image, (0, 0))
        sheet.paste(Image.fromarray(colours[mask]), (0, image.height))
        return Opened(sheet, image.size)


class Text:
    """Files of text, read as a whole; their lines are the things."""

    classes: ClassVar[Mapping[str, int]] = {}
    unpaired: ClassVar[Sequence[int]] = ()

    def __init__(self, paths: list[Path]) -> None:
        self.path = paths[0] if len(paths) == 1 else paths[0].parent
        lines, words, characters = 0, 0, 0
        different: set[str] = set()
        for block in text_blocks(paths):  # of whole lines, each with its newline
            found = block.split()
            lines += block.count("\n")
            words += len(found)
            characters += len(block)
            different.update(found)
        self._lines = lines
        self.facts = {
            "words": words,
            "different words": len(different),
            "tokens with <eos>": words + lines,
            "characters": characters,
        }

    def __len__(self) -> int:
        return self._lines

    def name(self, index: int) -> str:
        return f"{self.path.name} line {index + 1}"

    def caption(self, index: int) -> str:
        return ""

    def open(self, index: int) -> None:
        return None


ITEMS: dict[Task, Callable[[Any], Items]] = {
    "images": Pictures,
    "benchmark": Pictures,
    "segmentation": Scenes,
    "text": Text,
}
