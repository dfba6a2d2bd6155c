"""Labels of images of any size: overlapping windows, several scales, flips.

For a view (ratio r, flipped or not) of an image:

    resize, keeping its shape, into (long r, short r); enlarge until the short side holds a window
    flip
    windows at 0, s, 2 s, ... < L - window, and at L - window; the mean of their logits where they
    overlap
    bilinear to the size of the image; flip back

The class probabilities of a pixel are the mean of softmax(logits) over the views, its label their
largest. Windows of all images, positions and views share forward passes.
"""
# B images, K classes, H x W image, h x w view

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from pidformer.control.pid import widened
from pidformer.errors import InputError, check_known

MULTI_RATIOS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
"""The ratios of multi-scale evaluation, each taken plain and flipped."""
MOST = 1 << 16
"""The largest side of a window or a scale, and the most windows in a pass."""
MOST_LABELS = 255
VIEWS = ("single", "multi")
"""One view, or twelve."""
STRIP = {False: 1 << 22, True: 1 << 26}
"""Probabilities (pixels x classes x images) made at once when labels are read off, CPU and GPU."""

PixelLogits = Callable[[Tensor], Tensor]
"""Images (B, C, window, window) to logits (B, K, window, window), such as a `PixelModel`."""


class View(NamedTuple):
    ratio: float = 1.0
    is_flipped: bool = False


class _Place(NamedTuple):
    """One window of one view, of all images."""

    number: int
    picture: Tensor  # (B, C, h, w)
    overlap: Tensor  # (h, w), one over the number of windows on each pixel
    rows: slice
    columns: slice


@dataclass(frozen=True, kw_only=True)
class Sliding:
    """How an image is cut: a value, called with a model.

    >>> Sliding(scale=(2048, 512), window=512, stride=480).starts(683)
    [0, 171]
    """

    scale: tuple[int, int]
    """(long, short): images are resized to fit into it, at ratio 1."""
    window: int
    stride: int
    views: tuple[View, ...] = (View(),)
    max_windows: int = 32
    """Windows in one forward pass: what bounds memory, together with the scale."""

    def __post_init__(self) -> None:
        for name in ("window", "stride", "max_windows"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= MOST:
                raise InputError(f"{name} must be a whole number from 1 to {MOST}, got {value!r}")
        is_pair = len(self.scale) == 2 and all(type(side) is int for side in self.scale)
        if not is_pair or not all(1 <= side <= MOST for side in self.scale):
            raise InputError(
                f"scale must be two whole numbers from 1 to {MOST}, got {list(self.scale)!r}"
            )
        if self.stride > self.window:
            raise InputError(
                f"stride {self.stride} is larger than the window of {self.window}: pixels would "
                "be left out; choose a smaller one"
            )
        if not self.views:
            raise InputError("an image needs at least one view")

    @classmethod
    def of(cls, fields: Mapping[str, Any], views: str = "single", max_windows: int = 32) -> Self:
        """How a segmentation run cuts images: the "inference" of its model.json."""
        check_known("views", views, VIEWS)
        single = cls(
            scale=tuple(fields["scale"]),
            window=fields["window"],
            stride=fields["stride"],
            max_windows=max_windows,
        )
        return single.multi() if views == "multi" else single

    def multi(self) -> Self:
        """The same with the twelve views of multi-scale evaluation."""
        views = tuple(View(ratio, flip) for ratio in MULTI_RATIOS for flip in (False, True))
        return replace(self, views=views)

    def starts(self, length: int) -> list[int]:
        """Where windows begin along a side of this length."""
        last = length - self.window
        return [*range(0, max(last, 0), self.stride), last]

    def sizes(self, height: int, width: int, ratio: float) -> list[tuple[int, int]]:
        """The sizes an image passes through: fitted into the scale, then as large as a window."""
        from pidformer.data.segmentation.augment import rescaled  # whose package loads readers

        fitted = rescaled(height, width, self.scale, ratio)
        h, w = fitted
        if min(h, w) >= self.window:
            return [fitted]
        side = self.window
        return [fitted, (side, int(w / h * side)) if h < w else (int(h / w * side), side)]

    def count(self, height: int, width: int) -> int:
        """Windows of one image of this size, over all views."""
        total = 0
        for ratio, _ in self.views:
            h, w = self.sizes(height, width, ratio)[-1]
            total += len(self.starts(h)) * len(self.starts(w))
        return total

    def planes(self, model: PixelLogits, images: Tensor) -> list[Tensor]:
        """Mean logits of each view, (B, K, h, w), at the view's size and not flipped back.

        Differentiable, like `logits`.
        """
        if images.ndim != 4 or 0 in images.shape[1:] or not images.is_floating_point():
            raise InputError(
                "images must be floats (B, channels, height, width) in [0, 1], got "
                f"{images.dtype} {tuple(images.shape)}"
            )
        parts = list(images.split(self.max_windows))
        if len(parts) > 1:
            each = [self.planes(model, part) for part in parts]
            return [torch.cat(views) for views in zip(*each, strict=True)]
        places = self._places(images)
        planes: list[Tensor | None] = [None] * len(self.views)
        size = max(1, self.max_windows // max(1, len(images)))
        while packed := list(itertools.islice(places, size)):
            crops = [place.picture[..., place.rows, place.columns] for place in packed]
            logits = model(torch.cat(crops)).unflatten(0, (len(crops), len(images)))
            for place, part in zip(packed, logits, strict=True):
                planes[place.number] = _added(planes[place.number], part, place)
        return [plane for plane in planes if plane is not None]

    def logits(self, model: PixelLogits, images: Tensor) -> Tensor:
        """The mean logits of the views at the size of the images, (B, K, H, W)."""
        size = (images.shape[-2], images.shape[-1])
        found = []
        for view, plane in zip(self.views, self.planes(model, images), strict=True):
            resized = F.interpolate(plane, size=size, mode="bilinear", align_corners=False)
            found.append(resized.flip(-1) if view.is_flipped else resized)
        return functools.reduce(torch.add, found) / len(found)

    def probabilities(self, model: PixelLogits, images: Tensor) -> Tensor:
        """The mean of softmax(logits) over the views, (B, K, H, W)."""
        planes = self.planes(model, images)
        return torch.cat(list(self._strips(planes, images)), dim=-2) / len(self.views)

    @torch.no_grad()
    def labels(self, model: PixelLogits, images: Tensor) -> Tensor:
        """The most likely class of each pixel, uint8 (B, H, W).

        Probabilities at the size of the images are made a strip of rows at a time, so a large
        photograph costs no more than its views.
        """
        planes = self.planes(model, images)
        if planes[0].shape[1] > MOST_LABELS:
            raise InputError(
                f"{planes[0].shape[1]} classes do not fit labels of one byte, in which 255 says "
                "that a pixel does not count; take probabilities(...).argmax(1)"
            )
        strips = [p.argmax(1).to(torch.uint8) for p in self._strips(planes, images)]
        return torch.cat(strips, dim=-2)

    def _strips(self, planes: Sequence[Tensor], images: Tensor) -> Iterator[Tensor]:
        """Sums of softmax(logits) over the views, some rows at a time."""
        height, width = images.shape[-2:]
        row = planes[0].shape[0] * planes[0].shape[1] * width
        step = max(1, STRIP[images.is_cuda] // max(1, row))
        for start in range(0, height, step):
            rows = range(start, min(start + step, height))
            strips = []
            for view, plane in zip(self.views, planes, strict=True):
                strip = _resized_rows(plane, rows, height, width).softmax(1)
                strips.append(strip.flip(-1) if view.is_flipped else strip)
            yield functools.reduce(torch.add, strips)

    def _places(self, images: Tensor) -> Iterator[_Place]:
        """Every window of every view; a view's picture is made when its turn comes."""
        for number, (ratio, is_flipped) in enumerate(self.views):
            picture = images
            for size in self.sizes(images.shape[-2], images.shape[-1], ratio):
                if picture.shape[-2:] != size:
                    picture = F.interpolate(
                        picture, size=size, mode="bilinear", align_corners=False
                    )
            if is_flipped:
                picture = picture.flip(-1)
            tops, lefts = (self.starts(side) for side in picture.shape[-2:])
            overlap = _overlap(tops, lefts, self.window, picture)
            for top, left in itertools.product(tops, lefts):
                rows, columns = (slice(start, start + self.window) for start in (top, left))
                yield _Place(number, picture, overlap, rows, columns)


def _added(plane: Tensor | None, logits: Tensor, place: _Place) -> Tensor:
    """The view's plane with one more window, weighted by how many cover each pixel."""
    height, width = place.picture.shape[-2:]
    logits = widened(logits)
    if logits.shape[-2:] == (height, width):
        return logits
    rows, columns = place.rows, place.columns
    weight = place.overlap[rows, columns]
    if plane is None:
        plane = logits.new_zeros(*logits.shape[:2], height, width)
    if logits.requires_grad:  # in place would tie the graph in knots
        room = (columns.start, width - columns.stop, rows.start, height - rows.stop)
        return plane + F.pad(logits * weight, room)
    plane[..., rows, columns].addcmul_(logits, weight)
    return plane


def _overlap(tops: list[int], lefts: list[int], window: int, picture: Tensor) -> Tensor:
    sides = []
    for starts, length in zip((tops, lefts), picture.shape[-2:], strict=True):
        covered = torch.zeros(length)
        for start in starts:
            covered[start : start + window] += 1
        sides.append(covered)
    return (1 / (sides[0][:, None] * sides[1])).to(picture.device, non_blocking=True)


def _resized_rows(plane: Tensor, rows: range, height: int, width: int) -> Tensor:
    """Rows of the plane (B, K, h, w) resized, bilinear, to height x width."""
    source = plane.shape[-2]
    row = torch.arange(rows.start, rows.stop, device=plane.device)
    place = ((row + 0.5) * (source / height) - 0.5).clamp(min=0)
    above = place.long().clamp(max=source - 1)
    below = (above + 1).clamp(max=source - 1)
    share = (place - above)[:, None]
    mixed = plane[..., above, :] * (1 - share) + plane[..., below, :] * share
    return F.interpolate(mixed, size=(len(rows), width), mode="bilinear", align_corners=False)
