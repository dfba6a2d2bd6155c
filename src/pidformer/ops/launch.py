"""Our kernels as operators, and their launches.

What Triton decides anew at each launch can be decided once per shape.
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
from torch._C._functorch import is_legacy_batchedtensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from pidformer.ops.dispatch import Tiles, control_tiles, has_triton, is_interpreted, power_of_two

MOST = 4096
"""Kernels kept; shapes that never end start over."""
_compiled: dict[tuple[Any, ...], Any] = {}


Plan = TypeVar("Plan")


def cached_by_size(plan: Callable[..., Plan]) -> Callable[..., Plan]:
    """What sizes decide, decided once; sizes that a compiler leaves open are no key."""
    kept = lru_cache(maxsize=256)(plan)

    @wraps(plan)
    def found(*sizes: int) -> Plan:
        if torch.compiler.is_compiling() or torch.SymInt in map(type, sizes):
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
    key = (id(kernel), device.index, strides, sizes, constants, tiles.warps, tiles.stages, *types)
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
    if is_seen and isinstance(tensors[0], FakeTensor):
        return None  # asked for the outputs' shapes, not for what is in them
    if is_seen and not is_interpreted():
        kernel = torch.library.wrap_triton(kernel)
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    return kernel[(programs,)](*tensors, *others, *constants, **options)


@cached_by_size
def control_plan(tokens: int, dim: int, group: int) -> tuple[Tiles, tuple[int, ...]]:
    """Tiles of the control kernels, and their GROUP, D, BLOCK_D, BLOCK."""
    pad = power_of_two(dim)
    tiles = control_tiles(tokens, pad)
    return tiles, (group, dim, pad, tiles.rows)


def launch_rows(
    kernel: Any,
    out: Tensor,
    kv_heads: int,
    tensors: tuple[Tensor | None, ...],
    steps: tuple[tuple[int, ...], ...],
    numbers: tuple[float, ...],
) -> None:
    """Launch a kernel whose programs each have a tile of rows of one value head.

    `out` is (B, H, N, D); `steps` are those of the tensors that may have any strides.
    """
    batch, heads, tokens, dim = out.shape
    tiles, constants = control_plan(tokens, dim, heads // kv_heads)
    programs, sizes = batch * kv_heads * -(-tokens // tiles.rows), (tokens, kv_heads)
    launch(kernel, programs, tensors, sum(steps, ()), numbers, sizes, constants, tiles)


class KernelOp:
    """A function that launches our kernels, also registered as the operator pidformer::`name`.

    A compiler gets the operator, and sees through `triton_op` to the kernels: it launches them
    itself and plans their memory (interpreted ones it must not see). So does whatever else looks at
    operators, and autograd, which refuses second derivatives. Otherwise the function is called as
    it is: the registered one would take the host several times as long. The shapes of the outputs
    are found by the function as well, on tensors without numbers, for which nothing is launched.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        is_seen = has_triton() and not is_interpreted()
        register = torch.library.triton_op if is_seen else torch.library.custom_op
        filled = _filled(function)
        self.function = function
        self.op = register(f"pidformer::{name}", mutates_args=())(filled)
        if not is_seen:  # `triton_op` does so by itself
            self.op.register_fake(filled)

    def __call__(self, *inputs: Any) -> Any:
        return self.op(*inputs) if _is_observed(inputs) else self.function(*inputs)


def _filled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with empty tensors for the outputs that it does not make: operators have no None
    among theirs."""

    @wraps(function)
    def filled(*inputs: Any) -> Any:
        made = function(*inputs)
        if isinstance(made, Tensor):
            return made
        return tuple(inputs[0].new_empty(0) if x is None else x for x in made)

    return filled


def _is_observed(inputs: tuple[Any, ...]) -> bool:
    """Whether somebody has to see an operator: a compiler, a mode, a subclass, autograd, vmap."""
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode():
        return True
    if torch._C._are_functorch_transforms_active():
        return True
    has_grad = torch.is_grad_enabled()
    for x in inputs:
        if isinstance(x, Tensor):
            if type(x) not in PLAIN or (has_grad and x.requires_grad):
                return True
            if is_legacy_batchedtensor(x):  # gradients asked for in a batch: one stands for many
                return True
    return False


PLAIN = (Tensor, torch.nn.Parameter)
