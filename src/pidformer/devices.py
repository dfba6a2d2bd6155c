"""Where tensors live, and how exactly matrices are multiplied there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def tf32() -> Iterator[None]:
    """Matrix products of a CUDA device round their factors to 10 bits, for a while."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    if before == "tf32":
        yield
        return
    # torch has an older and a newer name for this, and refuses to answer when they disagree: the
    # older one sets both. Setting it back leaves "ieee" where nothing was set, hence the last line.
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        matmul.fp32_precision = before
