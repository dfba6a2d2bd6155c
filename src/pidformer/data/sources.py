"""What a set of images, or of images with masks, offers to the loaders, and its splits."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from PIL import Image
from torch import Tensor

from pidformer.data.pictures import UnreadableImage
from pidformer.errors import InputError, some

TRAIN = "train"
VALIDATION = ("val", "validation", "valid", "test")
HELD_OUT = 10
Item = TypeVar("Item", covariant=True)


class Decodable(Protocol[Item]):
    """A set in a fixed order, whose members (images, or pairs) are decoded one by one."""

    @property
    def classes(self) -> tuple[str, ...]: ...
    def __len__(self) -> int: ...
    def name(self, index: int) -> str:
        """The file or row, for messages."""
        ...

    def decode(self, index: int) -> Item:
        """One member; `UnreadableImage` for a broken one, `InputError` for impossible labels."""
        ...


@runtime_checkable
class Fetchable(Protocol):
    """A set that is far away: asking for many members at once is faster."""

    def fetch(self, indices: list[int]) -> None: ...


class ImageSource(Decodable[Image.Image], Protocol):
    """A labelled image set; pictures are RGB or L.

    `channels` is 3 (RGB) or 1 (grey); a label of -1 means "none of the classes".
    """

    @property
    def labels(self) -> Tensor: ...  # int64 (N,)
    @property
    def channels(self) -> int: ...


class Pair(NamedTuple):
    """A picture and its labels, of one size."""

    image: Image.Image  # RGB
    mask: np.ndarray  # uint8 (H, W): 0 ... K - 1, or 255 for pixels that do not count


class SegmentSource(Decodable[Pair], Protocol):
    """A segmentation set."""

    @property
    def palette(self) -> np.ndarray: ...  # uint8 (K, 3)


@dataclass(frozen=True, eq=False)
class ArrayImages:
    """Images of one size in memory, called by the set's title and a number."""

    images: np.ndarray  # uint8 (N, H, W) or (N, H, W, 3)
    labels: Tensor
    classes: tuple[str, ...]
    title: str
    numbers: Sequence[int] | np.ndarray

    @property
    def channels(self) -> int:
        return 3 if self.images.ndim == 4 else 1

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        return f"{self.title} image {self.numbers[index]}"

    def decode(self, index: int) -> Image.Image:
        return Image.fromarray(self.images[index])


def shorter_side(source: ImageSource) -> int:
    """Pixels of the shorter side of the first picture that can be read."""
    for index in range(len(source)):
        with suppress(UnreadableImage):
            return min(source.decode(index).size)
    raise InputError(f"none of the {len(source)} images can be read; the first is {source.name(0)}")


def stored_side(source: ImageSource) -> int | None:
    """The short side that larger pictures were shrunk to (a cache); None for all others."""
    return getattr(source, "short_side", None)


def check_detail(source: ImageSource, short_side: int) -> None:
    """Refuse a cache whose pictures were made smaller than they are needed."""
    held = stored_side(source)
    if held is not None and held < short_side:
        raise InputError(
            f"the cache holds images shrunk to a short side of {held}, but {short_side} pixels are "
            f"needed; make one with --size {short_side}, or give the set itself"
        )


def in_order(splits: Iterable[str]) -> list[str]:
    """Training first, then what validates, then the others."""
    return sorted(splits, key=lambda name: (name != TRAIN, name not in VALIDATION, name))


def evenly(count: int, wanted: int | None) -> list[int]:
    """`wanted` places spread over `count`, both ends included; all for None."""
    if wanted is None or wanted >= count:
        return list(range(count))
    return np.unique(np.linspace(0, count - 1, wanted).round().astype(int)).tolist()


def stored_names(split: str) -> tuple[str, ...]:
    """Names to look for, best first: "val" may be stored as any of `VALIDATION`."""
    return VALIDATION if split == "val" else (split,)


def find_split(
    split: str, held: Collection[str], place: object, *, verb: str = "it holds", hint: str = ""
) -> str:
    """The name among `held` that a split is stored under."""
    for name in stored_names(split):
        if name in held:
            return name
    raise InputError(f"no split {split!r} in {place}; {verb} {some(in_order(held))}{hint}")


def part_of(files: np.ndarray, groups: np.ndarray, split: str) -> np.ndarray:
    """Which files are "train", or "val", of a set without validation data.

    Of each group one in ten is held out, and one at least where there are two. A hash of the names
    chooses, so the same files are held out on every machine.
    """
    keys = np.array([hashlib.sha256(np.asarray(file).tobytes()).digest()[:8] for file in files])
    is_held = np.zeros(len(files), dtype=bool)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        count = -(-len(members) // HELD_OUT) if len(members) > 1 else 0
        is_held[members[np.argsort(keys[members], kind="stable")][:count]] = True
    if not is_held.any() and split != TRAIN:
        raise InputError(
            "no image can be held out for validation where no class has two; add images, or give "
            "the splits folders of their own"
        )
    return np.flatnonzero(is_held == (split != TRAIN))
