"""Patches to tokens by one matrix product."""
# B images, C channels, E width

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import PatchEmbed
from torch import Tensor, nn


def patch_product(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.conv2d` of patches that do not overlap (stride = kernel) as one matrix product.

    Images (B, C, height, width) to (B, E, rows, columns), whose memory runs tokens first.
    """
    batch, channels, height, width = images.shape
    down, right = weight.shape[-2:]
    rows, columns = height // down, width // right
    whole = images[..., : rows * down, : columns * right]
    patches = whole.reshape(batch, channels, rows, down, columns, right)
    patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3)  # (B, rows, columns, C down right)
    return F.linear(patches, weight.flatten(1), bias).permute(0, 3, 1, 2)


class PatchProjection(nn.Conv2d):
    """The convolution of a patch embedding; on CUDA by `patch_product`.

    In bf16 cuDNN's convolution copies images and weights into other layouts first; a product of
    patches has its tokens in order at once. Elsewhere the convolution stays, bit for bit timm's.
    """

    def forward(self, input: Tensor) -> Tensor:
        return _project(self, input)


def _project(convolution: PatchProjection, images: Tensor) -> Tensor:
    if images.is_cuda:
        return patch_product(images, convolution.weight, convolution.bias)
    return nn.Conv2d.forward(convolution, images)


torch.fx.wrap("_project")  # one step to torch.fx, which does not know the device


class ProjectedPatches(PatchEmbed):
    """timm's `PatchEmbed` with `PatchProjection`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.proj.__class__ = PatchProjection  # same parameters, same start
