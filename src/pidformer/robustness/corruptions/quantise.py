"""Eight bits: where the definitions start and end.

Between, pixels are level / 255 in float64: in float32 a sum that should end on a whole level
misses it by enough for the truncation to take the level below.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SLACK = 1e-9  # of a level: 99.9999999999 is 100


def to_8_bit(images: Tensor) -> Tensor:
    """Clip to [0, 1], times 255, truncate; the level / 255 in float64."""
    return images.double().clamp(0, 1).mul_(255).add_(_SLACK).floor_().div_(255)


def round_8_bit(images: Tensor) -> Tensor:
    """The nearest of the 256 levels, / 255 in float64."""
    return images.to(torch.float64, copy=True).mul_(255).round_().div_(255)
