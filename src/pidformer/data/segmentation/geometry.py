"""Sizes of images that keep their shape."""

from __future__ import annotations

Scale = tuple[int, int]
"""(long, short): the box, in either orientation, that images are resized into."""


def rescaled(height: int, width: int, scale: Scale, ratio: float = 1.0) -> tuple[int, int]:
    """The size of an image resized, keeping its shape, into (long r, short r), as mmcv rounds it.

    >>> rescaled(480, 640, (2048, 512))
    (512, 683)
    """
    long, short = (int(side * ratio) for side in (max(scale), min(scale)))
    factor = min(long / max(height, width), short / min(height, width))
    return max(1, int(height * factor + 0.5)), max(1, int(width * factor + 0.5))
