"""What a segmentation set gives: pairs."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from PIL import Image


class Pair(NamedTuple):
    """A picture and its labels, of one size."""

    image: Image.Image  # RGB
    mask: np.ndarray  # uint8 (H, W): 0 ... K - 1, or 255 for pixels that do not count


class SegmentSource(Protocol):
    """A segmentation set: indexable, in a fixed order, decoded one pair at a time."""

    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def palette(self) -> np.ndarray: ...  # uint8 (K, 3)
    def __len__(self) -> int: ...
    def name(self, index: int) -> str:
        """The file or row, for messages."""
        ...

    def decode(self, index: int) -> Pair:
        """The pair; `UnreadableImage` for a broken one, `InputError` for labels that cannot be."""
        ...
