"""Whether a set is kept on the device, at which size, and decoding it once to keep it there."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import numpy as np
import psutil
import torch
from PIL import Image
from torch import Tensor

from pidformer.data.arguments import Resident
from pidformer.data.augment import Augment
from pidformer.data.pictures import UnreadableImage
from pidformer.data.sources import Decodable, ImageSource, evenly
from pidformer.devices import usable_cores
from pidformer.display import advancing
from pidformer.errors import InputError

T = TypeVar("T")

MAX_BYTES = 8 * 2**30
MAX_ENLARGED = 1.15  # images with a side longer than this times image_size are streamed
PROBES = 32
CHUNK = 512
LONG = 5000  # members that are worth a progress bar


class OtherSize(Exception):
    """A member that does not have the size of the others: which, and its height and width."""


def choose_storage(
    source: ImageSource, image_size: int, augment: Augment, device: torch.device, resident: Resident
) -> tuple[int, int] | None:
    """Height and width to keep a training set of images at on the device, or None to stream it."""
    if augment.rand_augment is not None and resident is True:
        raise InputError(
            f"rand_augment {augment.rand_augment!r} works on streamed images only; "
            "set resident to 'auto' or false"
        )
    if augment.rand_augment is not None or resident is False:
        return None
    (height, width), is_faithful = _stored_size(source, image_size, augment.crop)
    total = len(source) * source.channels * height * width
    if resident is True or (is_faithful and fits_in_memory(total, device)):
        return height, width
    return None


def fits_in_memory(total: int, device: torch.device) -> bool:
    """Whether `total` bytes are at most 8 GiB and a quarter of the memory that is free."""
    return total <= min(MAX_BYTES, _free_memory(device) // 4)


def some_sizes(source: Decodable[T], picture: Callable[[T], Image.Image]) -> set[tuple[int, int]]:
    """Heights and widths of a few members' pictures, evenly spread."""
    sizes = set()
    for index in evenly(len(source), PROBES):
        with suppress(UnreadableImage):
            width, height = picture(source.decode(index)).size
            sizes.add((height, width))
    return sizes


def decode_all(
    source: Decodable[T],
    indices: np.ndarray,
    read: Callable[[T], tuple[np.ndarray, ...]],
    kept: tuple[Tensor, ...],
    *,
    show_progress: bool,
) -> list[int]:
    """Write the arrays of each member into its row of `kept` (uint8); those that are unreadable."""
    unreadable: list[int] = []
    is_long = len(indices) >= LONG

    def load(index: int) -> tuple[np.ndarray, ...] | None:
        try:
            return read(source.decode(index))
        except UnreadableImage:
            unreadable.append(index)
            return None

    with (
        advancing("decoding images", len(indices), is_shown=show_progress and is_long) as advance,
        ThreadPoolExecutor(min(16, usable_cores())) as pool,
    ):
        for start in range(0, len(indices), CHUNK):
            part = indices[start : start + CHUNK].tolist()
            loaded = dict(enumerate(pool.map(load, part)))
            whole = {row: arrays for row, arrays in loaded.items() if arrays is not None}
            for row, arrays in whole.items():
                if arrays[0].shape != kept[0].shape[1:]:
                    raise OtherSize(part[row], *arrays[0].shape[-2:])
            if whole:
                rows = torch.tensor(list(whole), device=kept[0].device) + start
                for target, column in zip(kept, zip(*whole.values(), strict=True), strict=True):
                    target[rows] = torch.from_numpy(np.stack(column)).to(target.device)
            advance(len(part))
    return sorted(unreadable)


def _stored_size(source: ImageSource, image_size: int, crop: str) -> tuple[tuple[int, int], bool]:
    """The size to keep images at, and whether batches then look as if they were streamed.

    A random resized crop is taken from the originals when they all have one size, so it equals a
    crop of the file. Otherwise images are fitted to a square of `image_size` once: harmless for
    the other crops, which start with that, and for square images that hardly shrink.
    """
    fitted = (image_size, image_size)
    if crop != "resized":
        return fitted, True
    sizes = some_sizes(source, lambda image: image)
    if any(max(size) > MAX_ENLARGED * image_size for size in sizes):
        return fitted, False
    if len(sizes) == 1:
        return sizes.pop(), True
    return fitted, all(width == height for height, width in sizes)


def _free_memory(device: torch.device) -> int:
    """Free bytes of a CUDA device, or of this machine for any other."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available
