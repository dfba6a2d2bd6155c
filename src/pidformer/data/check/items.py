"""A split as a check sees it: things with names that can be opened one by one."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from PIL import Image

from pidformer.data.pictures import UnreadableImage, read_picture
from pidformer.data.sources import ImageSource

_PALETTE = np.random.default_rng(0).integers(40, 256, size=(256, 3), dtype=np.uint8)
IGNORED = 255


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

    def __len__(self) -> int: ...
    def name(self, index: int) -> str: ...
    def caption(self, index: int) -> str: ...
    def open(self, index: int) -> Opened | None:
        """A picture of it, None for text; raises `UnreadableImage` when it is damaged."""
        ...


@dataclass(frozen=True)
class Pictures:
    """A labelled image set."""

    source: ImageSource
    facts: Mapping[str, Any] = field(default_factory=dict)

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
    """Images with a mask of classes each, given as paths or bytes."""

    names: tuple[str, ...]
    images: tuple[Path | bytes, ...]
    masks: tuple[Path | bytes | None, ...]
    classes: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return self.names[index]

    def caption(self, index: int) -> str:
        return self.names[index].rpartition("/")[2].rpartition(".parquet ")[2]

    def open(self, index: int) -> Opened:
        """The image above its mask in colours."""
        image, mask = read_picture(self.images[index]), self.masks[index]
        if mask is None:
            raise UnreadableImage("it has no mask")
        levels = _levels(mask)
        if levels.shape != (image.height, image.width):
            raise UnreadableImage(
                f"image is {image.width}x{image.height}, mask {levels.shape[1]}x{levels.shape[0]}"
            )
        pair = Image.new("RGB", (image.width, 2 * image.height))
        pair.paste(image, (0, 0))
        colours = _PALETTE[levels]
        colours[levels == IGNORED] = 0
        pair.paste(Image.fromarray(colours), (0, image.height))
        return Opened(pair, image.size)


def _levels(mask: Path | bytes) -> np.ndarray:
    """The classes of a mask, uint8 (H, W)."""
    try:
        with Image.open(io.BytesIO(mask) if isinstance(mask, bytes) else mask) as opened:
            levels = np.array(opened)
    except Exception as error:  # PIL's plugins raise far more than OSError on broken files
        raise UnreadableImage(f"mask: {type(error).__name__}: {error}") from None
    if levels.ndim != 2 or levels.dtype != np.uint8:
        raise UnreadableImage(f"mask is {levels.dtype} of {levels.ndim} dimensions, not 8-bit grey")
    return levels


@dataclass(frozen=True)
class Text:
    """A file of text; its lines are the things."""

    path: Path
    lines: int
    facts: Mapping[str, Any]
    classes: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.lines

    def name(self, index: int) -> str:
        return f"{self.path.name} line {index + 1}"

    def caption(self, index: int) -> str:
        return ""

    def open(self, index: int) -> None:
        return None
