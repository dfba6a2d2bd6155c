"""Where tensors live, and how exactly matrices are multiplied there."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pidformer.errors import InputError


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def as_device(device: str | torch.device) -> torch.device:
    """The device, if this machine has it; "auto" is the GPU where there is one."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # by hand: torch takes kinds on which no command works, and reads cuda:999 as cuda:-25
    named = re.fullmatch(r"(cpu|cuda|mps)(?::(\d+))?", str(device))
    if named is None:
        raise InputError(f"device must be auto, cpu or cuda (or cuda:1, mps), got {str(device)!r}")
    kind, number = named[1], int(named[2] or 0)
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": torch.mps.device_count()}[kind]
    if count == 0:
        raise InputError(f"device {str(device)!r} needs a GPU that torch can use; use cpu")
    if number >= count:
        raise InputError(
            f"device {str(device)!r} is not on this machine, whose last is {kind}:{count - 1}"
        )
    return torch.device(device)


def launched_device(device: str | torch.device) -> torch.device:
    """The same, where a launcher started several processes and gives each a GPU of its own."""
    chosen = as_device(device)
    if chosen.type == "cuda" and chosen.index is not None:
        raise InputError(
            f"device {device!r} is for one process that is started alone; torchrun and accelerate "
            "launch give each process a GPU of its own: use cuda"
        )
    return chosen


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
