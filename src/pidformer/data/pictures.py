"""One picture: from bytes to a PIL image in RGB, to a given size, to pixels."""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from torchvision.transforms.functional import center_crop

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What is decoded, whatever a file is called. PIL knows more: for EPS it starts another program."""


class UnreadableImage(Exception):
    """A file or row that is not a whole picture; the loaders count these, up to a limit."""


def read_picture(source: bytes | Path) -> Image.Image:
    """Decode a whole picture and bring it to RGB, or raise `UnreadableImage`."""
    with opened(source) as image:
        return to_rgb(image)


@contextmanager
def opened(source: bytes | Path, what: str = "") -> Iterator[Image.Image]:
    """The file while it is decoded; whatever goes wrong is an `UnreadableImage`."""
    try:
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        with Image.open(file, formats=FORMATS) as image:
            yield image
    except (MemoryError, UnreadableImage):
        raise
    except Exception as error:  # PIL's plugins raise far more than OSError on broken files
        raise UnreadableImage(f"{what}{type(error).__name__}: {error}") from None


def to_rgb(image: Image.Image) -> Image.Image:
    """RGB of any mode; transparent pixels show a white page, 16-bit grey keeps its range.

    PIL's own convert("RGB") shows whatever colour hides under transparent pixels, clips 16-bit
    grey at 255, and cuts fractions off, to black where floats are in [0, 1]. Orientation tags are
    left alone, as ImageNet training and evaluation do.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        return image.copy()
    if image.mode.startswith("I"):  # "I", "I;16", "I;16B": PNG and TIFF hold 16 bits in them
        levels = np.asarray(image).astype(np.int64).clip(0, 65535)
        if isinstance(clear := image.info.get("transparency"), int):
            levels[levels == clear] = 65535
        return Image.fromarray((levels / 257).round().astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise UnreadableImage("its pixels are floats, of no known range; save it with 8 or 16 bits")
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        page = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(page, picture).convert("RGB")
    return image.convert("RGB")


def fit(image: Image.Image, height: int, width: int) -> Image.Image:
    """Resize (bicubic) until height x width is covered, then cut it out of the centre."""
    covering = _cover(image, height, width)
    return covering if covering.size == (width, height) else center_crop(covering, [height, width])


def evaluation_side(size: int, crop_ratio: float) -> int:
    """The short side that evaluation resizes to: size / crop_ratio rounded down, as timm and DeiT.

    >>> evaluation_side(224, 0.9)
    248
    """
    return math.floor(size / crop_ratio + 1e-6)  # 224 / (224 / 248) may be just below 248


def fit_for_evaluation(image: Image.Image, size: int, crop_ratio: float) -> Image.Image:
    """Short side to `evaluation_side`, bicubic, then the central size x size.

    A picture that already is size x size is taken as it is: it was cut for this size (Tiny
    ImageNet, ImageNet-C), and a second crop would only throw its border away.
    """
    if image.size == (size, size):
        return image
    short = evaluation_side(size, crop_ratio)
    return center_crop(_cover(image, short, short), [size, size])


def shrink(image: Image.Image, short_side: int) -> Image.Image:
    """Short side to `short_side`, as for evaluation; a smaller picture as it is."""
    return image if min(image.size) <= short_side else _cover(image, short_side, short_side)


def pixels(image: Image.Image) -> np.ndarray:
    """uint8 (C, H, W), C = 3 for RGB and 1 for L."""
    array = np.array(image)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def _cover(image: Image.Image, height: int, width: int) -> Image.Image:
    # int(size * long / short), in this order, as torchvision's Resize has the long side
    if width * image.height > height * image.width:
        size = (width, int(width * image.height / image.width))
    else:
        size = (int(height * image.width / image.height), height)
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)
