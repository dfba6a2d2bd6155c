"""What a threat is, and what it may be given."""

from collections.abc import Callable
from numbers import Real
from typing import Protocol

import torch
from torch import Tensor

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


def check_images(images: Tensor, labels: Tensor) -> None:
    """Refuse what is not a batch of pixels with its labels."""
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
    if not images.numel():
        return
    low, high = torch.stack(images.aminmax()).tolist()  # one wait for the device
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"images must be in [0, 1], got values from {low:.3g} to {high:.3g}; leave them as "
            "pixels and normalise inside the model: pidformer.PixelModel(model, mean, std)"
        )


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
