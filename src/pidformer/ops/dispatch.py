"""Which kernels compute the operator: the rules, and the one table of sizes, in one place.

    PIDFORMER_KERNELS=torch|auto|triton        for a whole process
    with pf.ops.kernels("auto"): ...           for a block of code

"torch" is SDPA and PyTorch's own elementwise kernels, on any device. "auto", the default, takes our
kernels on CUDA devices, silently: the control's epilogue, one pass, on all of them (timed on an
H200 alone); `short_attention` on Hopper alone, for the sizes at which it was faster there, and with
work for all multiprocessors (`ALONE`).
"triton" takes them wherever they can run, with one warning for each reason they cannot.
"""
# B batch, H heads, Hkv key/value heads, N queries, M keys, D head dim

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pidformer.errors import unknown

Kernels = Literal["torch", "auto", "triton"]
Route = Literal["short", "epilogue", "torch"]

HEAD_DIMS = (16, 128)
"""Head dims that the kernels take: from, to; between powers of two they are padded."""
BACKWARD_TILE = 256 * 64
"""Keys times head dim, both padded, that `short_backward` holds in registers."""


LONGEST = 512
"""Most tokens that `short_attention` takes; longer sequences take SDPA and the control epilogue."""
LONGEST_TRAINED = {16: 256, 32: 256, 64: 256, 128: 128}
"""Most at which "auto" trains with it, by padded head dim."""
ALONE = 128
"""Most tokens at which "auto" trains with `short_attention` whatever the batch.

Its backward has one program for each value head, which walks over all queries, where SDPA's cuts
long sequences up: the likely reason why, with 16 heads for the 132 multiprocessors of an H200, it
took 0.83 of SDPA's time at 128 tokens and 1.35 at 256. So above this it takes as many heads in a
batch as there are multiprocessors. Forward, each 64 queries are a program: there 12 programs for
256 tokens took 5.6 us, SDPA 7.2, with a pass for the control 9.3.
"""


def sums_type(value: Tensor, sums: Tensor | None) -> torch.dtype:
    """The type of the next sum of errors: that of `sums`, or of the values where there is none."""
    return value.dtype if sums is None else sums.dtype


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """How a kernel cuts its work: rows (queries) and keys a step, warps, pipeline stages.

    The control of a tile is computed in `parts`, columns after columns: at once it would take 210
    registers a thread where attention takes 128, and halve what runs at a time.

    Of the backward only: `tail`, keys of a second, smaller tile; `turned`, dq is made transposed;
    `lean`, a step computes its addresses anew instead of keeping them in registers.
    """

    rows: int
    keys: int
    warps: int
    stages: int
    parts: int = 1
    turned: bool = True
    tail: int = 0
    lean: bool = False


def forward_tiles(tokens: int, dim: int) -> Tiles:
    """Tiles of `short_forward`: padded head dim `dim`."""
    if tokens <= 32:
        return Tiles(rows=16, keys=16, warps=2, stages=1)
    return Tiles(rows=64, keys=64, warps=4, stages=2, parts=max(dim // 32, 1))


def backward_tiles(tokens: int, dim: int) -> Tiles:
    """Tiles of `short_backward`: all keys are one tile, or a full one and a small tail.

    A tile that takes eight warps leaves no room for a second program on a multiprocessor; without
    its empty half two or three fit, and one computes while another waits for memory.
    """
    keys = max(16, power_of_two(tokens))
    tail = max(16, power_of_two(tokens - keys // 2))
    is_large = keys * dim >= 128 * 64
    if is_large and tail <= 32 and dim < 128:
        stages = 1 if keys // 2 + tail <= 80 else 2  # a second one would cost the third program
        return Tiles(rows=16, keys=keys // 2, tail=tail, warps=4, stages=stages, lean=True)
    # Turned, dq of 128 dims came out wrong on an H200 (Triton 3.6); as it is, it is right.
    return Tiles(
        rows=min(32, keys), keys=keys, warps=8 if is_large else 4, stages=2, turned=dim < 128
    )


def control_tiles(tokens: int, dim: int) -> Tiles:
    """Tiles of the control kernels: about 2048 numbers a program."""
    rows = min(max(2048 // dim, 1), power_of_two(tokens))
    return Tiles(rows=rows, keys=0, warps=4, stages=1)


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << max(number - 1, 0).bit_length()


_NAMES: tuple[Kernels, ...] = get_args(Kernels)
# Judged where it is used: an import that fails leaves the command line no way to say why.
_selected: Kernels = os.environ.get("PIDFORMER_KERNELS") or "auto"  # type: ignore[assignment]
# Blocks that are open, each a list of its name: threads leave theirs in any order.
_open: list[list[Kernels]] = [[_selected]]
_opening = threading.Lock()


def selected() -> Kernels:
    """The kernels asked for now; what the environment asks for must be a name of kernels."""
    if _selected not in _NAMES:
        raise unknown("PIDFORMER_KERNELS", _selected, _NAMES)
    return _selected


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on any device."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


@contextmanager
def kernels(name: Kernels) -> Iterator[None]:
    """Within this block the operator runs on these kernels: "torch", "auto" or "triton".

    For all threads (a backward pass has its own): of blocks that are open, the latest counts.
    """
    global _selected
    if name not in _NAMES:
        raise unknown("kernels", name, _NAMES)
    block = [name]
    with _opening:
        _open.append(block)
        _selected = name
    try:
        yield
    finally:
        with _opening:
            _open[:] = [other for other in _open if other is not block]
            _selected = _open[-1][0]


def route(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_plain: bool,
    has_mask: bool,
    dropout_p: float,
    scale: float | None,
    state: tuple[Tensor, ...] | None,
) -> Route:
    """Which way these inputs take where our kernels are asked for (`is_asked`).

    `is_plain`: attention alone, there is nothing to control.
    """
    reason = _obstacle(q, v, state)
    if reason is not None:
        if _selected == "triton" or reason.startswith("Triton"):
            _warn_once(reason)
        return "torch"
    if _is_short(q, k, v, has_mask, dropout_p, scale):
        return "short"
    return "torch" if is_plain else "epilogue"


def is_asked(q: Tensor) -> bool:
    """Whether our kernels are to run where q is, if they can."""
    name = selected()
    return name == "triton" or (name == "auto" and q.is_cuda)


def needs_grad(*tensors: Tensor | None) -> bool:
    """Whether autograd will ask for a gradient of any of them."""
    if torch.is_grad_enabled():
        for x in tensors:
            if x is not None and x.requires_grad:
                return True
    return False


def _is_short(
    q: Tensor, k: Tensor, v: Tensor, has_mask: bool, dropout_p: float, scale: float | None
) -> bool:
    tokens, dim = q.shape[-2], power_of_two(q.shape[-1])
    if has_mask or dropout_p or k.shape[-2] != tokens or (scale is not None and scale <= 0):
        return False
    if not q.dtype == k.dtype == v.dtype or v.shape[-1] != q.shape[-1]:
        return False
    if q.dtype == torch.bfloat16 and not q.is_cuda:
        return False  # Triton's interpreter multiplies such matrices as if they were integers
    is_training = needs_grad(q, k, v)
    room = _backward_room(q.device.type, q.device.index)
    if is_training and max(16, power_of_two(tokens)) * dim > room:
        return False
    if tokens > (LONGEST_TRAINED[dim] if is_training and _selected == "auto" else LONGEST):
        return False
    is_wide = q.is_cuda and q.dtype == torch.float32
    if is_wide and (is_training or not is_rounded()):
        return False
    if _selected == "triton":
        return True
    if not _is_hopper(q.device.type, q.device.index):
        return False
    if not is_training or tokens <= ALONE:
        return True
    return q.shape[0] * k.shape[1] >= _multiprocessors(q.device.index)


@torch.compiler.assume_constant_result
def is_rounded() -> bool:
    """Whether float32 goes through `short_attention` on a CUDA device, its products in TF32.

    Where those around it are, as in an evaluation with `precision="tf32"`. SDPA has no TF32: its
    float32 takes three such products for one. To be asked for, since no GPU has run it yet.
    """
    is_asked = os.environ.get("PIDFORMER_TF32") == "1"
    return is_asked and torch.get_float32_matmul_precision() != "highest"


def _obstacle(q: Tensor, v: Tensor, state: tuple[Tensor, ...] | None) -> str | None:
    """Why our kernels cannot take these inputs, in one line; None if they can."""
    if is_transformed():
        return "ours are not for torch.func, forward gradients, torch.jit, export, function modes"
    if q.ndim != 4:
        return f"the kernels take (batch, heads, tokens, head dim), got {tuple(q.shape)}"
    if not torch.compiler.is_compiling() and is_traceable_wrapper_subclass(q):
        return f"the kernels take plain tensors, got {type(q).__name__}"
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"the kernels take bfloat16, float16 and float32, got {q.dtype}"
    if not HEAD_DIMS[0] <= q.shape[-1] <= HEAD_DIMS[1] or v.shape[-1] != q.shape[-1]:
        return f"the kernels take head dims from 16 to 128, got {q.shape[-1]} and {v.shape[-1]}"
    if q.numel() == 0:
        return "nothing to compute"
    if state is not None:
        for x in state:
            if x.ndim != 4 or x.device != v.device:
                return "the state is not on the device of the values"
    return _unusable(q.device.type, q.device.index)


def is_usable(x: Tensor) -> bool:
    """Whether our kernels run where x is, and nobody looks at or transforms what is computed."""
    return not is_transformed() and _unusable(x.device.type, x.device.index) is None


def is_transformed() -> bool:
    """Whether `torch.func`, forward gradients, a trace, export or a function mode is at work."""
    if torch.compiler.is_compiling():
        # `is_exporting()` is true under torch 2.11's compiler too
        return torch.compiler._is_exporting_flag
    if torch._C._are_functorch_transforms_active() or torch.jit.is_tracing():
        return True
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    # Modes that look at attention (`pidformer.analysis`) must see PyTorch's; a default device is
    # no such mode.
    if not torch._C._len_torch_function_stack():
        return False
    stack = torch.overrides._get_current_function_mode_stack()
    return any(not isinstance(mode, DeviceContext) for mode in stack)


@torch.compiler.assume_constant_result
def _backward_room(kind: str, index: int | None) -> int:
    """Keys times head dim that fit; less on devices with little shared memory."""
    if kind != "cuda":
        return BACKWARD_TILE
    shared = _properties(index).shared_memory_per_block_optin
    return BACKWARD_TILE if shared >= 160 * 1024 else BACKWARD_TILE // 4


@torch.compiler.assume_constant_result
def _is_hopper(kind: str, index: int | None) -> bool:
    return kind == "cuda" and _properties(index).major == 9


@torch.compiler.assume_constant_result
def _multiprocessors(index: int | None) -> int:
    return _properties(index).multi_processor_count


@cache
def _properties(index: int | None) -> Any:
    return torch.cuda.get_device_properties(index)


_checked: dict[tuple[str, int | None], str | None] = {}


@torch.compiler.assume_constant_result
def _unusable(kind: str, index: int | None) -> str | None:
    """Why Triton does not run on this device; None if it does. Tried once, on a small problem."""
    device = (kind, index)
    if device not in _checked:
        _checked[device] = _try_triton(torch.device(kind if index is None else f"{kind}:{index}"))
    return _checked[device]


def _try_triton(device: torch.device) -> str | None:
    if not has_triton():
        return "the kernels need triton, which is not installed"
    if device.type != "cuda" and not is_interpreted():
        return f"the kernels run on CUDA devices, got {device.type}"
    if device.type == "cuda" and torch.version.hip is not None:
        return "the kernels are written for NVIDIA's devices"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        return "the kernels need compute capability 8.0"
    try:
        with torch.no_grad(), unset_fake_temporarily():
            one = torch.ones(1, 1, 1, 16, device=device)
            control = torch.ops.pidformer.control  # of the epilogue, which imports this module
            u, _ = control(one, one, one, one, None, None, 1.0, 0.0, 0.0, 0.5, True)
            if float(u.sum()) != 8.0:
                return "Triton gives wrong numbers on this device; PyTorch's kernels are used"
    except Exception as error:  # whatever a broken compiler or driver raises
        line = str(error).strip().splitlines() or [""]
        return f"Triton does not work here ({type(error).__name__}: {line[0][:200]})"
    return None


_warned: set[str] = set()


def _warn_once(reason: str) -> None:
    if torch.compiler.is_compiling() or reason in _warned:
        return
    _warned.add(reason)
    warnings.warn(f"PyTorch's kernels are used: {reason}", stacklevel=4)
