"""What `torch.compile` is told."""

from typing import Any

import torch
from torch import nn

_SLOW = "triton.mix_order_reduction"
"""Sums over tokens and over features in one kernel, as for a layer norm's gradients. Without it a
step of DeiT-tiny at 64 pixels takes 8.4 ms instead of 8.9 (H200, torch 2.11)."""


def compile_options(mode: str) -> dict[str, Any]:
    """Inductor's options for a mode of `torch.compile`, less what slows training down."""
    from torch import _inductor  # seconds, which only those who compile should wait

    options: dict[str, Any] = _inductor.list_mode_options(mode)
    return options | ({_SLOW: False} if _SLOW in _inductor.list_options() else {})


def compile_seconds(model: nn.Module, device: torch.device) -> int:
    """About how long the first step compiles, by the number of blocks.

    Twelve blocks took 90 s on an H200 (torch 2.11), six took 119 s on two busy CPU cores (2.15).
    """
    rows = (nn.ModuleList, nn.Sequential)
    blocks = max((len(m) for m in model.modules() if isinstance(m, rows)), default=0)
    first, each = (30, 5) if device.type == "cuda" else (60, 10)
    return first + each * blocks
