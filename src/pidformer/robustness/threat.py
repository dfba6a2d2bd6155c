"""What a threat is, what it may be given, and what it may draw."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pidformer.data.noise import indexed_keys, normal_noise, uniform_noise
from pidformer.errors import InputError, shortened

Model = Callable[[Tensor], Tensor]
"""Images (B, C, H, W) in [0, 1] to logits (B, classes): any callable, such as a `PixelModel`."""


class Threat(Protocol):
    """Images and their true labels to what the model will be shown instead.

    A threat is a frozen value whose `repr` is all that is needed to make it again. What it draws
    depends on (seed, offset + row) alone, `offset` being the place of the first image in the whole
    set: so the split into batches changes nothing.
    """

    def __call__(
        self, model: Model, images: Tensor, labels: Tensor, *, seed: int = 0, offset: int = 0
    ) -> Tensor: ...


def check_batch(images: Tensor, labels: Tensor) -> None:
    """Refuse what has not the type or the shape of a batch and its labels."""
    check_tensors(images, labels)
    if not images.is_floating_point():
        raise InputError(
            f"images must be floats in [0, 1], got {images.dtype}; divide integers by 255"
        )
    if images.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"images must be float32 or float64, got {images.dtype}, which has no room for small "
            "steps; the model may cast them: lambda x: model(x.bfloat16())"
        )
    if images.ndim != 4 or labels.shape != images.shape[:1] or labels.dtype != torch.long:
        raise InputError(
            "a threat needs images (B, C, H, W) and int64 labels (B,), got "
            f"{tuple(images.shape)} and {labels.dtype} {tuple(labels.shape)}"
        )


def check_tensors(images: object, labels: object) -> None:
    if not isinstance(images, Tensor) or not isinstance(labels, Tensor):
        kinds = f"{type(images).__name__} and {type(labels).__name__}"
        raise InputError(
            f"images and labels must be torch tensors, got {kinds}; torch.as_tensor makes them"
        )


def check_span(span: Sequence[Tensor]) -> None:
    """Refuse pixels outside [0, 1], by their least and their largest; of no pixels, nothing."""
    if not span:
        return
    low, high = torch.stack(tuple(span)).tolist()  # one wait for the device
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"images must be in [0, 1], got values from {low:.3g} to {high:.3g}; leave them as "
            "pixels and normalise inside the model: pidformer.PixelModel(model, mean, std)"
        )


def as_whole(name: str, value: int) -> int:
    """A seed or a place: a whole number from 0, of Python or of NumPy."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise InputError(f"{name} must be a whole number >= 0, got {shortened(value)}")
    return number


def as_budget(value: float | str) -> float:
    """A budget as a number: given as one, or as text, a number or a fraction.

    >>> as_budget(0.1), as_budget("0.1"), as_budget("3/255") == 3 / 255
    (0.1, 0.1, True)
    """
    try:
        if isinstance(value, str):
            above, slash, below = value.partition("/")
            return float(above) / float(below if slash else 1)
        if isinstance(value, Real) and not isinstance(value, bool):
            return float(value)
    except (ValueError, ZeroDivisionError, OverflowError):
        pass
    raise InputError(
        f"a budget is a number, or text such as '0.1' or '3/255'; got {shortened(value)}"
    )


def check_budget(name: str, value: float) -> None:
    """Refuse a budget that is no distance between pixels in [0, 1]."""
    if not 0 <= value <= 1:
        asked = f"; did you mean {value:g}/255?" if 1 < value <= 255 else ""
        raise InputError(f"{name} must be in [0, 1], the scale of the pixels, got {value:g}{asked}")


def check_distance(name: str, value: float) -> None:
    """Refuse a budget that is no length: of a sum over pixels (L1, L2), so it may be above 1."""
    if not 0 <= value < float("inf"):
        raise InputError(f"{name} must be a length, at least 0, got {value:g}")


def pixel_text(value: float) -> str:
    """The shortest text that evaluates to exactly this budget.

    >>> pixel_text(3 / 255), pixel_text(0.1)
    ('3/255', '0.1')
    """
    levels = f"{value * 255:g}"
    is_exact = float(levels) / 255 == value
    return min(repr(value), f"{levels}/255", key=len) if is_exact else repr(value)


@dataclass(frozen=True)
class Draws:
    """What an attack may draw for its images: a function of (path, row) alone.

    `path` starts with the seed and says what the numbers are for (`at`); `rows` are the places of
    the images in the whole set, so a part of a batch (`of`) draws what it would have drawn in it.
    """

    path: tuple[int, ...]
    rows: Tensor

    @classmethod
    def of_batch(cls, images: Tensor, seed: int, offset: int) -> Draws:
        """The draws of a batch whose first image is image `offset` of the whole set."""
        seed, start = as_whole("seed", seed), as_whole("offset", offset)
        return cls((seed,), torch.arange(start, start + len(images), device=images.device))

    def at(self, *place: int) -> Draws:
        """The same rows, for another purpose."""
        return Draws((*self.path, *place), self.rows)

    def of(self, index: Tensor) -> Draws:
        """The same purpose, for some of the rows."""
        return Draws(self.path, self.rows[index])

    def keys(self, count: int = 1) -> Tensor:
        """`count` independent keys per row, (n * count, 2), those of a row side by side."""
        words = np.random.SeedSequence(self.path).generate_state(count).astype(np.int64)
        words_here = torch.from_numpy(words).to(self.rows.device)
        rows = self.rows.repeat_interleave(count)
        return torch.stack([words_here.repeat(len(self.rows)), rows], dim=1)

    def uniform(self, *shape: int) -> Tensor:
        """U(0, 1] of shape (n, *shape)."""
        return uniform_noise(self.keys(), math.prod(shape)).view(-1, *shape)

    def normal(self, *shape: int) -> Tensor:
        """N(0, 1) of shape (n, *shape)."""
        # Both words of a key know the row: one gives the radius of Box-Muller, one the angle.
        first, second = np.random.SeedSequence(self.path).generate_state(2).tolist()
        keys = indexed_keys(first, second, self.rows)
        return normal_noise(keys, math.prod(shape)).view(-1, *shape)


def random_signs(keys: Tensor, count: int) -> Tensor:
    """+1 or -1 with equal chances, (n, count), row k from keys[k]: sixteen from each number."""
    numbers = (uniform_noise(keys, -(-count // 16)) * 65536).to(torch.int32)
    shifts = torch.arange(16, device=keys.device, dtype=torch.int32)
    bits = (numbers[..., None] >> shifts) & 1
    return bits.flatten(1)[:, :count].float().mul_(2).sub_(1)
