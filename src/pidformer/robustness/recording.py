"""Gradient steps recorded once and replayed, where an attack waits for the host, not the device.

Only inside `recorded()`: an attack that nobody asked to record runs as it is.
The first step of a shape runs as it is, the second is watched: if the host is what it waits for, it
is recorded as a CUDA graph, replayed on its own input and compared; later steps are replays, the
same kernels on other numbers. What cannot be recorded, or answers differently (it waits for the
device, draws random numbers, mixes the images of a batch), stays as it was, and a warning says so
once. A model is watched and compared once; recordings live as long as their scope.
"""
# B images of a batch, C rows of a recording

import gc
import time
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule

from pidformer.ops import dispatch

Tensors = tuple[Tensor, ...]
Work = Callable[..., Tensors]
"""Tensors of B rows to tensors of B rows, no row of which knows the others."""

EXACT, ROUNDED = 1e-3, 0.05
"""How far a replay may lie from its original, relative to its length, if that is in float32 and if
it is in less: another number of rows may take other kernels."""
HOST_BOUND = 0.75
"""Recorded is what the host takes at least this share of a step's time for: else nothing is won."""

_verdicts: WeakKeyDictionary[nn.Module, dict[Hashable, bool]] = WeakKeyDictionary()
"""Whether a step of a model is worth recording, by what else decides that."""


class Recorder:
    """The recordings of one scope, found again by what they compute; `close` gives memory back."""

    def __init__(self) -> None:
        self._found: dict[Hashable, _Recording | None] = {}
        self._seen: set[Hashable] = set()
        self._most: dict[Hashable, int] = {}
        self._taken: dict[object, bool] = {}

    def takes(self, model: Hashable) -> bool:
        """Whether to try with this model; asked once, as a walk over its modules takes a while."""
        if model not in self._taken:
            self._taken[model] = is_recordable(model)
        return self._taken[model]

    def run(
        self, model: nn.Module, precision: str, formula: Hashable, work: Work, *inputs: Tensor
    ) -> Tensors:
        """`work(*inputs)`, replayed if it is recorded; the first three are all it closes over."""
        kinds = [(x.shape[1:], x.dtype, x.device) for x in inputs]
        what = (precision, formula, *_surroundings(), *kinds)
        rows = len(inputs[0])
        most = self._most[model, what] = max(rows, self._most.get((model, what), 0))
        size = capacity(rows, most)
        key = (model, what, size)
        if key not in self._found:
            if key not in self._seen:  # it may not come again; if it does, kernels are compiled
                self._seen.add(key)
                return work(*inputs)
            verdict = _verdicts.setdefault(model, {}).get((what, size))
            if verdict is None:
                return self._watch(key, work, inputs)
            self._found[key] = self._record(work, inputs, size)[0] if verdict else None
        recording = self._found[key]
        return work(*inputs) if recording is None else recording.replay(inputs)

    def _watch(
        self, key: tuple[nn.Module, tuple[Any, ...], int], work: Work, inputs: Tensors
    ) -> Tensors:
        """The outputs, and a recording if it is possible and worth it."""
        recording = None
        outputs, share, reason = _watched(work, inputs)
        is_finite = all(bool(x.isfinite().all()) for x in outputs)  # else the attack will say so
        if reason is None and is_finite and share >= HOST_BOUND:
            recording, reason = self._record(work, inputs, key[2])
            limit = _tolerance(key[0], key[1][0])
            if recording is not None and not _agree(recording.replay(inputs), outputs, limit):
                recording, reason = None, "a replay gives other numbers: it draws, or mixes images"
        if reason is not None:
            _say_once(reason)
        model, what, size = key
        _verdicts[model][what, size] = recording is not None
        self._found[key] = recording
        return outputs

    def _record(
        self, work: Work, inputs: Tensors, rows: int
    ) -> tuple["_Recording | None", str | None]:
        if torch.cuda.mem_get_info()[0] < torch.cuda.memory_reserved():
            torch.cuda.empty_cache()  # what is kept for later calls is out of reach of a recording
        kept = [] if _failed else self._kept()
        pool = kept[0].graph.pool() if kept else None  # None: one of its own
        return _record(work, inputs, rows, pool)

    def _kept(self) -> list["_Recording"]:
        return [recording for recording in self._found.values() if recording is not None]

    def close(self) -> None:
        """Drop all recordings, their tensors first, and give back the pool that they share."""
        graphs = [recording.graph for recording in self._kept()]
        self._found.clear()
        for graph in graphs:
            graph.reset()
        if graphs:
            torch.cuda.empty_cache()

    __del__ = close


class _Recording:
    """A graph and the tensors that it reads and writes."""

    def __init__(self, graph: torch.cuda.CUDAGraph, inputs: Tensors, outputs: Tensors) -> None:
        self.graph, self.inputs, self.outputs = graph, inputs, outputs

    def replay(self, inputs: Tensors) -> Tensors:
        """The outputs for `inputs` of at most C rows; what lies behind them is left as it was."""
        rows = len(inputs[0])
        for place, given in zip(self.inputs, inputs, strict=True):
            place[:rows].copy_(given)
        self.graph.replay()
        return tuple(x[:rows].clone() for x in self.outputs)


current: ContextVar[Recorder | None] = ContextVar("recorder", default=None)
"""The recorder of the scope, if there is one."""


@contextmanager
def recorded(kept: Recorder | None = None) -> Iterator[None]:
    """A scope whose attacks share their recordings; an inner one is part of the outer.

    In it a model's weights may change in place, and must not be replaced by other tensors. A
    `kept` recorder continues in the next scope that is given it; its owner closes it.
    """
    if current.get() is not None:
        yield
        return
    recorder = Recorder() if kept is None else kept
    token = current.set(recorder)
    try:
        yield
    finally:
        current.reset(token)
        if kept is None:
            recorder.close()


def is_recordable(model: object) -> bool:
    """A module in evaluation mode that is not compiled, without hooks, which no replay would call.

    What else a callable does, only its author knows.
    """
    if not isinstance(model, nn.Module) or isinstance(model, OptimizedModule):
        return False
    return not any(
        m.training
        or m._forward_hooks
        or m._forward_pre_hooks
        or m._backward_hooks
        or m._backward_pre_hooks
        or m._compiled_call_impl is not None
        for m in model.modules()
    )


def capacity(rows: int, most: int) -> int:
    """The rows of the recording that `rows` go into, the rest of it idle: `most`, or a half of it,
    or a quarter, and so on, so that less than half is idle.

    >>> [capacity(rows, 64) for rows in (64, 40, 32, 31, 9, 1)]
    [64, 64, 32, 32, 16, 1]
    """
    while most > rows and (most + 1) // 2 >= rows:
        most = (most + 1) // 2
    return most


def _surroundings() -> tuple[Hashable, ...]:
    """What else decides which kernels run."""
    return (
        dispatch.selected(),
        torch.get_float32_matmul_precision(),
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
    )


def _tolerance(model: nn.Module, precision: str) -> float:
    weight = next(model.parameters(), None)
    is_wide = weight is None or weight.dtype in (torch.float32, torch.float64)
    is_exact = precision == "float32" and is_wide and not torch.is_autocast_enabled("cuda")
    return EXACT if is_exact else ROUNDED


def _watched(work: Work, inputs: Tensors) -> tuple[Tensors, float, str | None]:
    """Outputs, the share of time the host takes, and why the work cannot be recorded, if so."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    try:
        _set_sync_debug_mode("error")
        outputs = work(*inputs)
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
    else:
        sent = time.perf_counter()
        _set_sync_debug_mode(before)
        torch.cuda.synchronize()
        return outputs, (sent - begun) / (time.perf_counter() - begun), None
    finally:
        _set_sync_debug_mode(before)
    return work(*inputs), 0.0, "it waits for the device, as .item() or a boolean index does"


def _set_sync_debug_mode(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # once per process: that it is a prototype
        torch.cuda.set_sync_debug_mode(mode)


def _record(
    work: Work, inputs: Tensors, rows: int, pool: Any
) -> tuple[_Recording | None, str | None]:
    """The work on `rows` rows, the given ones repeated; or why there is none."""
    place = torch.arange(rows, device=inputs[0].device) % len(inputs[0])
    static = tuple(x[place] for x in inputs)
    graph = torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    was_collecting = gc.isenabled()
    gc.disable()  # what it frees might be another graph's, which no recording survives
    try:
        with torch.cuda.stream(side):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                outputs = work(*static)
            finally:
                graph.capture_end()
    except RuntimeError as error:
        _forget_capture(graph, pool)
        return None, str(error).splitlines()[0]
    finally:
        if was_collecting:
            gc.enable()
        torch.cuda.current_stream().wait_stream(side)
        # The room for the side stream's matrix products would keep the pool for good.
        torch._C._cuda_clearCublasWorkspaces()
    return _Recording(graph, static, outputs), None


_failed: list[torch.cuda.CUDAGraph] = []
"""Kept, since allocators may go on asking a graph whether it is being recorded; that of pinned
memory refuses its pool from then on, so no pool is shared any more."""


def _forget_capture(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    """A failed recording leaves generator and allocator believing that it is still running."""
    _failed.append(graph)
    graph.reset()
    device = torch.cuda.current_device()
    generator = torch.cuda.default_generators[device]
    generator.graphsafe_set_state(generator.clone_state())
    try:
        torch._C._cuda_endAllocateToPool(device, pool)
    except RuntimeError:  # it had not begun, or had ended: the graph gives the pool back
        return
    torch._C._cuda_releasePool(device, pool)


def _agree(found: Tensors, expected: Tensors, limit: float) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(bool((a - b).norm() <= limit * b.norm()) for a, b in pairs)


_said: set[str] = set()


def _say_once(reason: str) -> None:
    if reason not in _said:
        _said.add(reason)
        warnings.warn(
            f"the model's gradient step cannot be recorded ({reason}); attacks run without, slower",
            stacklevel=2,
        )
