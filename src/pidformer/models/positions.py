"""Position embeddings on another grid of patches."""
# N tokens, C width

from typing import Literal

import torch
import torch.nn.functional as F
from timm.layers import resample_abs_pos_embed
from torch import Tensor

PositionResize = Literal["bicubic", "bilinear"]
"""How positions follow the grid: timm and DeiT's fine-tuning bicubic, Segmenter bilinear."""

Grid = tuple[int, int]


def resize_positions(
    positions: Tensor, old: Grid, new: Grid, num_prefix: int, how: PositionResize = "bilinear"
) -> Tensor:
    """Positions (1, num_prefix + old area, C) for a grid of `new`; the prefix rows are copied.

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
    plane = patches.unflatten(1, old).permute(0, 3, 1, 2)  # (1, C, height, width)
    wide = plane.to(torch.promote_types(plane.dtype, torch.float32))
    resized = F.interpolate(wide, size=new, mode="bilinear", align_corners=False).to(plane.dtype)
    return torch.cat([prefix, resized.flatten(2).transpose(1, 2)], dim=1)
