"""Masks: from a file or bytes to checked labels; names and colours of classes."""

import colorsys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pidformer.data.pictures import UnreadableImage, opened, read_picture
from pidformer.data.sources import Pair
from pidformer.errors import InputError, cut
from pidformer.fields import read_json

IGNORED = 255


class Legend(NamedTuple):
    classes: tuple[str, ...]
    palette: np.ndarray  # uint8 (K, 3)


def read_mask(source: bytes | Path) -> np.ndarray:
    """The stored numbers, uint8 or wider (H, W); of palette images their indices, not colours."""
    with opened(source, "mask: ") as image:
        mask = np.array(image)
    if mask.dtype == bool:
        return mask.astype(np.uint8)
    if mask.ndim != 2:
        raise UnreadableImage(
            f"mask: {mask.shape[-1]} channels; a mask holds one number per pixel, not colours"
        )
    if not np.issubdtype(mask.dtype, np.integer):
        raise UnreadableImage(f"mask: {mask.dtype} numbers; a mask holds whole ones")
    return mask


def label_table(stored: Iterable[int], ignored: Iterable[int]) -> np.ndarray:
    """A table from stored class numbers to labels; -1 where a number is not allowed."""
    table = np.full(256, -1, dtype=np.int16)
    table[[*ignored, IGNORED]] = IGNORED
    for label, number in enumerate(stored):
        table[number] = label
    return table


def labelled_pair(
    image: bytes | Path, mask: bytes | Path, table: np.ndarray, image_name: str, mask_name: str
) -> Pair:
    """A picture and the labels that `table` makes of its mask's numbers; the names for messages."""
    picture, stored = read_picture(image), read_mask(mask)
    height, width = stored.shape
    if picture.size != (width, height):
        raise InputError(
            f"{image_name}: the image is {picture.width} x {picture.height}, its mask "
            f"{width} x {height}; they must have one size"
        )
    low, high = (int(stored.min()), int(stored.max())) if stored.size else (0, 0)
    if low < 0 or high >= len(table):
        raise _beyond(mask_name, high if high >= len(table) else low, table)
    labels = table[stored]
    if (labels < 0).any():
        raise _beyond(mask_name, int(stored[labels < 0].max()), table)
    return Pair(picture, labels.astype(np.uint8))


def _beyond(name: str, label: int, table: np.ndarray) -> InputError:
    allowed = np.flatnonzero((table >= 0) & (table != IGNORED))
    ignored = np.flatnonzero(table == IGNORED)
    return InputError(
        f"{name}: the mask holds label {label}, but the set has {len(allowed)} classes, stored as "
        f"{allowed.min()} to {allowed.max()} ({', '.join(map(str, ignored[:3]))} is ignored)"
    )


def read_legend(path: Path) -> Legend:
    try:
        fields: Any = read_json(path)
        names = tuple(str(name) for name in fields["classes"])
        given = fields.get("palette")
        colours = default_palette(len(names)) if given is None else np.array(given, dtype=int)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(
            f'{path} must be {{"classes": [names], "palette": [[r, g, b], ...]}}, the palette '
            f"optional ({cut(f'{type(error).__name__}: {error}')})"
        ) from None
    if not 1 <= len(names) < IGNORED or fields.get("ignore_index", IGNORED) != IGNORED:
        raise InputError(
            f"{path} has {len(names)} classes and ignore_index "
            f"{fields.get('ignore_index', IGNORED)}; allowed are 1 to 254 classes and 255"
        )
    if colours.shape != (len(names), 3) or colours.min() < 0 or colours.max() > 255:
        raise InputError(f"{path}: palette must be {len(names)} colours [r, g, b] in 0 ... 255")
    return Legend(names, colours.astype(np.uint8))


def default_palette(count: int) -> np.ndarray:
    """Colours that lie apart: hues in steps of the golden ratio, alternately lighter and darker.

    >>> default_palette(2).tolist()
    [[242, 61, 61], [93, 122, 194]]
    """
    shades = ((0.75, 0.95), (0.52, 0.76), (0.9, 0.6), (0.35, 0.98))  # saturation, value
    colours = [
        colorsys.hsv_to_rgb(0.6180339887 * number % 1, *shades[number % len(shades)])
        for number in range(count)
    ]
    return np.rint(255 * np.array(colours)).astype(np.uint8)
