"""Image sets by location: what a set offers, and which format a folder holds."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Protocol

from PIL import Image
from torch import Tensor

from pidformer.data.cifar import cifar_folders, open_cifar
from pidformer.data.digits import open_digits
from pidformer.data.folders import has_folders, open_folders
from pidformer.data.parquet import has_parquet, open_parquet
from pidformer.data.pictures import UnreadableImage
from pidformer.errors import InputError


class ImageSource(Protocol):
    """A labelled image set: indexable, in a fixed order, decoded one picture at a time.

    `channels` is 3 (RGB) or 1 (grey); a label of -1 means "none of the classes".
    """

    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def labels(self) -> Tensor: ...  # int64 (N,)
    @property
    def channels(self) -> int: ...
    def __len__(self) -> int: ...
    def name(self, index: int) -> str:
        """The file or row, for messages."""
        ...

    def decode(self, index: int) -> Image.Image:
        """The picture, RGB or L; raises `UnreadableImage` for a broken one."""
        ...


def open_images(location: str | Path | None, split: str) -> ImageSource:
    """The `split` ("train", "val", or another the set has) of the image set at `location`.

    `location` is "digits" (or None) for the embedded digits, or a folder in one of
    three layouts, told apart by what is in it:

    - folders: DIR/{train,val}/<class>/*.JPEG (ImageNet)
    - Parquet: DIR/train.parquet or DIR/train-00000-of-00002.parquet (Hugging Face)
    - CIFAR: DIR/cifar-10-batches-py or DIR/cifar-100-python (torchvision)
    """
    folder = image_folder(location)
    if folder is None:
        return open_digits(split)
    if cifar_folders(folder):
        return open_cifar(folder, split)
    if has_parquet(folder):
        return open_parquet(folder, split)
    if has_folders(folder):
        return open_folders(folder, split)
    raise InputError(
        f"no image set in {folder}; it must hold train/ and val/ with a folder for each class, "
        "train.parquet and val.parquet, cifar-10-batches-py or cifar-100-python"
    )


def image_folder(location: str | Path | None) -> Path | None:
    """The folder of an image set, which must be there; None for the embedded digits."""
    if location is None or str(location) == "digits":
        return None
    folder = Path(location)
    if not folder.exists():
        raise InputError(f"no image set at {folder}; give an existing folder, or 'digits'")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file; give the folder that holds the image set")
    return folder


def shorter_side(source: ImageSource) -> int:
    """Pixels of the shorter side of the first picture that can be read."""
    for index in range(len(source)):
        with suppress(UnreadableImage):
            return min(source.decode(index).size)
    raise InputError(f"none of the {len(source)} images can be read; the first is {source.name(0)}")
