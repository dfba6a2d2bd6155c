"""Whether an image set is kept on the device, and at which size."""

from __future__ import annotations

import os

import numpy as np
import torch

from pidformer.data.augment import Augment
from pidformer.data.checks import Resident, check_resident
from pidformer.data.pictures import UnreadableImage
from pidformer.data.sources import ImageSource
from pidformer.errors import InputError

MAX_BYTES = 8 * 2**30
MAX_ENLARGED = 1.15  # images with a side longer than this times image_size are streamed
PROBES = 32


def choose_storage(
    source: ImageSource,
    image_size: int,
    augment: Augment,
    device: torch.device,
    resident: Resident,
) -> tuple[int, int] | None:
    """Height and width to keep a training set at on the device, or None to stream it."""
    check_resident(resident)
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


def _stored_size(source: ImageSource, image_size: int, crop: str) -> tuple[tuple[int, int], bool]:
    """The size to keep images at, and whether batches then look as if they were streamed.

    A random resized crop is taken from the originals when they all have one size, so it equals a
    crop of the file. Otherwise images are fitted to a square of `image_size` once: harmless for
    the other crops, which start with that, and for square images that hardly shrink.
    """
    fitted = (image_size, image_size)
    if crop != "resized":
        return fitted, True
    sizes = _some_sizes(source)
    if any(max(size) > MAX_ENLARGED * image_size for size in sizes):
        return fitted, False
    if len(sizes) == 1:
        width, height = sizes.pop()
        return (height, width), True
    return fitted, all(width == height for width, height in sizes)


def _some_sizes(source: ImageSource) -> set[tuple[int, int]]:
    """Sizes (width, height) of a few images, evenly spread."""
    sizes = set()
    for index in np.linspace(0, len(source) - 1, min(PROBES, len(source))).astype(int).tolist():
        try:
            sizes.add(source.decode(index).size)
        except UnreadableImage:
            continue
    return sizes


def _free_memory(device: torch.device) -> int:
    """Free bytes of a CUDA device, or of this machine for any other."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):  # not Linux: say half of the memory is free
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
