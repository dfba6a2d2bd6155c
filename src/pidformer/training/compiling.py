"""What `torch.compile` is told."""

from __future__ import annotations

from typing import Any

_SLOW = "triton.mix_order_reduction"
"""Sums over tokens and over features in one kernel, as for a layer norm's gradients. Without it a
step of DeiT-tiny at 64 pixels takes 8.4 ms instead of 8.9 (H200, torch 2.11)."""


def compile_options(mode: str) -> dict[str, Any]:
    """Inductor's options for a mode of `torch.compile`, less what slows training down."""
    from torch import _inductor  # seconds, which only those who compile should wait

    options: dict[str, Any] = _inductor.list_mode_options(mode)
    return options | ({_SLOW: False} if _SLOW in _inductor.list_options() else {})
