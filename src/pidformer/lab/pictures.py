"""Pictures that a visitor can choose (digits, a few of each run's own data) or upload."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image

from pidformer.data import ImageSource, open_images
from pidformer.data.pictures import UnreadableImage, fit_for_evaluation, pixels, read_picture
from pidformer.data.views import sample
from pidformer.errors import InputError
from pidformer.report.collect import Run
from pidformer.report.panels import png_uri

DIGITS = "digits"
HANDFUL = 24
"""Validation images that are offered of a set, the same for all."""
_SIDE = 48
"""Pixels of a thumbnail's side."""


class LabelledPicture(NamedTuple):
    """A picture, and what it shows if that is known."""

    image: Image.Image
    classes: tuple[str, ...] = ()
    label: int = -1

    def truth(self, classes: Sequence[str] | None) -> int | None:
        """The label, for a model of the same classes; None for any other."""
        return self.label if self.label >= 0 and tuple(classes or ()) == self.classes else None


class PictureSets:
    """Sets by name. Each is opened when it is first asked for, and only named ones can be."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self.folders = folders
        self._opened: dict[str, ImageSource] = {}
        self._thumbnails: dict[str, list[tuple[str, str]]] = {}

    @classmethod
    def of(cls, runs: Sequence[Run], data: str | Path | None = None) -> PictureSets:
        """The set at `data`, then those of the runs that are at $PIDFORMER_DATA/NAME or ./NAME.

        The one at `data` is called as its folder; by the whole path if that is "digits".
        """
        if data is not None and not Path(data).is_dir():
            raise InputError(f"no folder at {data}; --data names the folder of an image set")
        names = {
            str(run.recipe["data"]["name"])
            for run in runs
            if run.task == "classification" and run.recipe is not None
        }
        found = {}
        if data is not None:
            folder = Path(data).resolve()
            found[str(folder) if folder.name == DIGITS else folder.name] = Path(data)
        around = [Path(place) for place in (os.environ.get("PIDFORMER_DATA"), ".") if place]
        for name in sorted(names - {DIGITS}):
            if re.fullmatch(r"\w[\w.-]*", name):  # a recipe names a set, not a place
                places = [place / name for place in around if (place / name).is_dir()]
                found |= {name: places[0]} if places and name not in found else {}
        return cls(found)

    @property
    def names(self) -> list[str]:
        return [DIGITS, *self.folders]

    def count(self, name: str) -> int:
        return min(HANDFUL, len(self._source(name)))

    def thumbnails(self, name: str) -> list[tuple[str, str]]:
        """Class and small picture (a data URI) of each that is offered; of damaged ones, none."""
        if name not in self._thumbnails:
            self._thumbnails[name] = [self._thumbnail(name, k) for k in range(self.count(name))]
        return self._thumbnails[name]

    def _thumbnail(self, name: str, number: int) -> tuple[str, str]:
        try:
            image, classes, label = self.picture(name, number)
        except InputError:
            return "cannot be read", ""
        small = fit_for_evaluation(image, min(_SIDE, *image.size), 1.0).convert("RGB")
        return classes[label], png_uri(torch.from_numpy(pixels(small)) / 255)

    def _source(self, name: str) -> ImageSource:
        if name not in self.names:
            raise InputError(f"{name!r} is not among the pictures of this lab")
        if name not in self._opened:
            if name == DIGITS:
                self._opened[name] = open_images(DIGITS, "val")
            else:
                self._opened[name] = sample(open_images(self.folders[name], "val"), HANDFUL, 0)
        return self._opened[name]

    def picture(self, name: str, number: int) -> LabelledPicture:
        """Validation image `number` of a set; of all but the digits, one of a seeded handful."""
        source = self._source(name)
        number %= len(source)  # a set may have fewer than a handful
        try:
            image = source.decode(number)
        except UnreadableImage as error:
            raise InputError(f"{source.name(number)} cannot be read: {error}") from None
        return LabelledPicture(image, source.classes, int(source.labels[number]))


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
