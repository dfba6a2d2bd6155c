"""Pictures from visitors: few kinds, bounded, decoded once, and not kept."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from pidformer.data.pictures import UnreadableImage, read_picture
from pidformer.errors import InputError

KINDS = ("PNG", "JPEG", "WEBP")
ENDINGS = [".png", ".jpg", ".jpeg", ".webp"]
MOST_BYTES = 8 * 2**20
"""The server stops reading there, too."""
MOST_PIXELS = 40_000_000
_KEPT = 512


def take_upload(path: str | Path) -> Image.Image:
    """The picture in an uploaded file, in RGB, at most 512 pixels a side; removes the file."""
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise InputError(
                f"this file has {size / 2**20:.1f} MB; at most {MOST_BYTES >> 20} MB are taken"
            )
        data = path.read_bytes()
    finally:
        path.unlink(missing_ok=True)
    return read_upload(data)


def read_upload(data: bytes) -> Image.Image:
    """The same from bytes. The size is looked at before a single pixel is decoded."""
    try:
        with Image.open(io.BytesIO(data), formats=KINDS) as image:
            width, height = image.size
    except Exception:  # PIL's plugins raise far more than OSError on broken files
        raise InputError("this is no PNG, JPEG or WebP picture") from None
    if width * height > MOST_PIXELS:
        raise InputError(
            f"this picture has {width} x {height} pixels; at most {MOST_PIXELS // 10**6} million "
            "are taken"
        )
    try:
        picture = read_picture(data)
    except UnreadableImage:
        raise InputError("this picture is damaged: it cannot be decoded to its end") from None
    picture.thumbnail((_KEPT, _KEPT), Image.Resampling.BICUBIC)
    return picture
