"""Where tensors live."""

from __future__ import annotations

import torch

from pidformer.errors import InputError


def as_device(device: str | torch.device) -> torch.device:
    """The device, if this machine has it; "auto" is the GPU where there is one."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        raise InputError(
            f"device must be auto, cpu or cuda (or cuda:1, mps), got {device!r}"
        ) from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {str(device)!r} needs a GPU that torch can use; use cpu")
    return found
