"""Patches to tokens by one matrix product, and their positions on another grid."""
# B images, C channels, E width of a token

from typing import Any, Literal

import torch
import torch.nn.functional as F
from timm.layers import PatchEmbed, resample_abs_pos_embed
from torch import Tensor, nn

from pidformer.control.pid import widened

PositionResize = Literal["bicubic", "bilinear"]
"""How positions follow the grid: timm and DeiT's fine-tuning bicubic, Segmenter bilinear."""

Grid = tuple[int, int]


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


def resize_positions(
    positions: Tensor, old: Grid, new: Grid, num_prefix: int, how: PositionResize = "bilinear"
) -> Tensor:
    """Positions (1, num_prefix + old area, E) for a grid of `new`; the prefix rows are copied.

    Bilinear samples between patch centres (align_corners=False) and does not anti-alias, as
    Segmenter has it; bicubic is timm's, with anti-aliasing.
    """
    if old == new:
        return positions
    if how == "bicubic":
        return resample_abs_pos_embed(
            positions, new_size=list(new), old_size=list(old), num_prefix_tokens=num_prefix
        )
    prefix, patches = positions[:, :num_prefix], positions[:, num_prefix:]
    plane = patches.unflatten(1, old).permute(0, 3, 1, 2)  # (1, E, height, width)
    resized = F.interpolate(widened(plane), size=new, mode="bilinear", align_corners=False)
    return torch.cat([prefix, resized.to(plane.dtype).flatten(2).transpose(1, 2)], dim=1)
