"""Launches of our kernels: what Triton decides anew at each launch is decided once per shape.

Triton's own launch binds and inspects every argument, some 45 of them, which takes the host longer
than the kernel takes the device. All that it looks for is in the key here: types, sizes, strides,
which tensors are absent, and that all are aligned to 16 bytes; otherwise its own launch is used.
Only with PIDFORMER_LAUNCH=direct, until that has been compared with Triton's on a GPU.
"""

import os
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from pidformer.ops.dispatch import Tiles, is_interpreted

MOST = 4096
"""Kernels kept; shapes that never end start over."""
_compiled: dict[tuple[Any, ...], Any] = {}


Plan = TypeVar("Plan")


def cached_by_size(plan: Callable[..., Plan]) -> Callable[..., Plan]:
    """What sizes decide, decided once; sizes that a compiler leaves open are no key."""
    kept = lru_cache(maxsize=256)(plan)

    @wraps(plan)
    def found(*sizes: int) -> Plan:
        if torch.compiler.is_compiling() or any(isinstance(x, torch.SymInt) for x in sizes):
            return plan(*sizes)
        return kept(*sizes)

    return found


def is_direct() -> bool:
    """Whether launches skip Triton's own, as they were asked to."""
    return os.environ.get("PIDFORMER_LAUNCH") == "direct"


def launch(
    kernel: Any,
    programs: int,
    tensors: tuple[Tensor | None, ...],
    strides: tuple[int, ...],
    numbers: tuple[float, ...],
    sizes: tuple[int, ...],
    constants: tuple[Any, ...],
    tiles: Tiles,
) -> None:
    """kernel(*tensors, *strides, *numbers, *sizes, *constants), on the device of the tensors."""
    others, device = (*strides, *numbers, *sizes), tensors[0].device  # type: ignore[union-attr]
    is_seen = torch.compiler.is_compiling() or is_in_torch_dispatch_mode()
    if is_seen or is_interpreted():
        _launch(kernel, programs, tensors, others, constants, tiles)
        return
    if device.index != torch.cuda.current_device():  # Triton launches on the current one
        with torch.cuda.device(device):
            _launch(kernel, programs, tensors, others, constants, tiles)
        return
    if not is_direct():
        _launch(kernel, programs, tensors, others, constants, tiles)
        return
    addresses = [None if x is None else x.data_ptr() for x in tensors]
    types = [None if x is None else x.dtype for x in tensors]
    key = (id(kernel), device.index, strides, sizes, constants, *types)
    found = _compiled.get(key)
    is_aligned = not any(address is not None and address & 15 for address in addresses)
    if found is not None and is_aligned:
        try:
            found[(programs, 1, 1)](*addresses, *others, *constants)
            return
        except (AttributeError, TypeError):  # a Triton whose kernels take other arguments
            is_aligned = False
            _compiled.clear()
    found = _launch(kernel, programs, tensors, others, constants, tiles)
    if is_aligned:
        if len(_compiled) >= MOST:
            _compiled.clear()
        _compiled[key] = found


def _launch(
    kernel: Any,
    programs: int,
    tensors: tuple[Tensor | None, ...],
    others: tuple[Any, ...],
    constants: tuple[Any, ...],
    tiles: Tiles,
) -> Any:
    """By Triton itself; such that a compiler recognises it. The compiled kernel, if it is eager."""
    is_seen = torch.compiler.is_compiling() or is_in_torch_dispatch_mode()
    if is_seen and not is_interpreted():
        kernel = torch.library.wrap_triton(kernel)
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    return kernel[(programs,)](*tensors, *others, *constants, **options)
