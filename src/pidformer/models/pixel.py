"""Models of pixels: normalisation inside, so that attacks and corruptions work on images."""

from collections.abc import Sequence
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from pidformer.errors import InputError

_HALVES = (torch.bfloat16, torch.float16)


def logits_in(output: Any) -> Any:
    """The logits of what a model gives: a tensor, or an output of Hugging Face."""
    return getattr(output, "logits", output)


def check_scale(mean: Sequence[float], std: Sequence[float]) -> None:
    """Refuse what cannot normalise the channels of an image."""
    if len(mean) != len(std) or not all(scale > 0 for scale in std):
        raise InputError(f"mean and std need one number per channel, std > 0; got {mean} and {std}")


class PixelModel(nn.Module):
    """images in [0, 1] -> model((images - mean) / std).

    The wrapped model is `.model`; mean and std, one number per channel, are not in the state dict.
    A model with half-precision weights takes float32 images and casts them. Training normalises in
    the task, which uses `normalise` alone; `pf.load` and evaluation wrap the network in this.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        model: nn.Module,
        mean: Sequence[float] = IMAGENET_DEFAULT_MEAN,
        std: Sequence[float] = IMAGENET_DEFAULT_STD,
    ) -> None:
        super().__init__()
        check_scale(mean, std)
        self.model = model
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, channels, height, width) in [0, 1] to whatever the model gives (its `logits`)."""
        return logits_in(self.model(self.normalise(images)))

    def normalise(self, images: Tensor) -> Tensor:
        """Pixels in [0, 1] to what the wrapped model takes."""
        if not images.is_floating_point():
            raise InputError(
                f"images must be floats in [0, 1], got {images.dtype}; divide integers by 255"
            )
        if images.ndim < 3 or images.shape[-3] != len(self.mean):
            raise InputError(
                f"images must be (B, {len(self.mean)}, height, width), got {tuple(images.shape)}"
            )
        normal = (images - self.mean) / self.std
        weight = next(self.model.parameters(), normal)
        return normal.to(weight.dtype) if weight.dtype in _HALVES else normal
