"""What segmentation training does to its pairs, as a value, and the numbers it draws."""
# B pairs

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pidformer.data.arguments import as_interval, check_share

ATTEMPTS = 10
"""Windows that are looked at before the next one is taken as it is."""
_WINDOWS = 2 * (ATTEMPTS + 1)
_NUMBERS = 1 + _WINDOWS + 1 + 9
"""Uniform numbers per pair: ratio, windows, flip, photometric."""
Scale = tuple[int, int]
"""(long, short): the box, in either orientation, that images are resized into."""


@dataclass(frozen=True, kw_only=True)
class SegmentAugment:
    """Random ratio, window, flip and colours; the defaults are those of Segmenter on ADE20K.

    The order is: resize to `ratio` times the scale, cut a window, flip, distort colours, normalise,
    pad. Colours (each change with probability 1/2, on 8-bit levels): brightness, contrast (before
    or after the next two), saturation, hue.
    """

    ratio: tuple[float, float] = (0.5, 2.0)
    """Range of the random size, relative to the scale."""
    max_category: float = 0.75
    """A window in which one class has this share or more of the labelled pixels, or all of them,
    is drawn again, up to ten times; 1 takes the first."""
    flip: float = 0.5
    """Probability of a left-right flip."""
    photometric: bool = True
    """Whether colours are distorted."""
    brightness: float = 32.0
    """Largest change, of 255."""
    contrast: tuple[float, float] = (0.5, 1.5)
    """Range of the factor."""
    saturation: tuple[float, float] = (0.5, 1.5)
    """Range of the factor."""
    hue: int = 18
    """Degrees / 2, as 8-bit HSV has them."""

    def __post_init__(self) -> None:
        for name in ("ratio", "contrast", "saturation"):
            object.__setattr__(self, name, as_interval(name, getattr(self, name)))
        for name, largest in (("max_category", 1), ("flip", 1), ("brightness", 255), ("hue", 90)):
            check_share(name, getattr(self, name), largest)


class Choices(NamedTuple):
    """What is done to each pair of a batch."""

    size: np.ndarray  # int64 (B, 2): height and width after resizing
    corners: np.ndarray  # int64 (B, ATTEMPTS + 1, 2): top and left of the windows to try
    is_flipped: np.ndarray  # bool (B,)
    brightness: np.ndarray  # float32 (B,), 0 for none
    early_contrast: np.ndarray  # float32 (B,), 1 for none
    late_contrast: np.ndarray
    saturation: np.ndarray  # float32 (B,), nan for none
    hue: np.ndarray  # int64 (B,), 0 for none


def rescaled(height: int, width: int, scale: Scale, ratio: float = 1.0) -> tuple[int, int]:
    """The size of an image resized, keeping its shape, into (long r, short r), as mmcv rounds it.

    >>> rescaled(480, 640, (2048, 512))
    (512, 683)
    """
    long, short = (int(side * ratio) for side in (max(scale), min(scale)))
    factor = min(long / max(height, width), short / min(height, width))
    return max(1, int(height * factor + 0.5)), max(1, int(width * factor + 0.5))


def uniform_numbers(rng: np.random.Generator, count: int) -> np.ndarray:
    """The numbers of a global batch, (count, ...) in [0, 1): row k belongs to position k."""
    return rng.random((count, _NUMBERS))


def choose(
    drawn: np.ndarray, sizes: np.ndarray, augment: SegmentAugment, scale: Scale, crop: int
) -> Choices:
    """Choices from rows of `uniform_numbers`, for pairs of these stored sizes (B, 2)."""
    ratios = _between(drawn[:, 0], *augment.ratio)
    pairs = zip(sizes.tolist(), ratios, strict=True)
    size = np.array([rescaled(h, w, scale, r) for (h, w), r in pairs], np.int64).reshape(-1, 2)
    room = np.maximum(size - crop, 0) + 1  # (B, 2)
    windows = drawn[:, 1 : 1 + _WINDOWS].reshape(len(drawn), -1, 2)
    flip, *colour = drawn[:, 1 + _WINDOWS :].T
    is_bright, bright, is_late, is_contrast, contrast, is_sat, sat, is_hue, hue = colour

    def change(is_made: np.ndarray, made: np.ndarray, none: float) -> np.ndarray:
        return np.where((is_made < 0.5) & augment.photometric, made, none)

    factor = change(is_contrast, _between(contrast, *augment.contrast), 1.0).astype(np.float32)
    shift = _between(bright, -augment.brightness, augment.brightness)
    turn = np.floor(_between(hue, -augment.hue, augment.hue))
    late = is_late < 0.5
    return Choices(
        size=size,
        corners=(windows * room[:, None]).astype(np.int64),
        is_flipped=flip < augment.flip,
        brightness=change(is_bright, shift, 0).astype(np.float32),
        early_contrast=np.where(late, np.float32(1), factor),
        late_contrast=np.where(late, factor, np.float32(1)),
        saturation=change(is_sat, _between(sat, *augment.saturation), np.nan).astype(np.float32),
        hue=change(is_hue, turn, 0).astype(np.int64),
    )


def _between(u: np.ndarray, low: float, high: float) -> np.ndarray:
    return low + (high - low) * u
