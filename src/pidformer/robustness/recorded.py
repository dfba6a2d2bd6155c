"""Gradient steps recorded once and replayed: on a GPU an attack waits for the host, not the device.

The first step of a shape runs as it is. The second is recorded as a CUDA graph, replayed on its
own input and compared with the step it was recorded from; all later ones are replays, the same
kernels on other numbers. What cannot be recorded, or answers differently (it waits for the host,
draws random numbers, mixes the images of a batch), stays as it was, and a warning says so once.
"""
# B images of a batch, C rows of a recording

import gc
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule

from pidformer.ops import dispatch

Tensors = tuple[Tensor, ...]
Work = Callable[..., Tensors]
"""Tensors of B rows to tensors of B rows, no row of which knows the others."""

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
"""How far a replay may lie from its original, relative to its length: other row counts may take
other kernels. 0.05 where less than float32 is computed in."""


class Recorder:
    """The recordings of one scope, found again by what they compute; `close` gives memory back."""

    def __init__(self) -> None:
        self._found: dict[Hashable, _Recording | None] = {}
        self._seen: set[Hashable] = set()
        self._most: dict[Hashable, int] = {}
        self._pool: Any = None
        self._taken: dict[object, bool] = {}

    def takes(self, model: Hashable) -> bool:
        """Whether to try with this model; asked once, as a walk over its modules takes a while."""
        if model not in self._taken:
            self._taken[model] = is_recordable(model)
        return self._taken[model]

    def run(self, what: Hashable, work: Work, *inputs: Tensor) -> Tensors:
        """`work(*inputs)`, replayed if it is recorded; `what` names all that it closes over."""
        what = (what, *_surroundings(), *((x.shape[1:], x.dtype, x.device) for x in inputs))
        rows = len(inputs[0])
        most = self._most[what] = max(rows, self._most.get(what, 0))
        key = (what, capacity(rows, most))
        if key in self._found:
            recording = self._found[key]
            return work(*inputs) if recording is None else recording.replay(inputs)
        if key not in self._seen:  # compiles kernels, chooses algorithms, fills caches
            self._seen.add(key)
            return work(*inputs)
        outputs, reason = _without_waiting(work, inputs)
        if reason is None:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            recording, reason = _record(work, inputs, key[1], self._pool)
            if recording is not None and not _agree(recording.replay(inputs), outputs):
                recording, reason = None, "a replay gives other numbers: it draws, or mixes images"
            self._found[key] = recording
        else:
            self._found[key] = None
        if reason is not None:
            _say_once(reason)
        return outputs

    def close(self) -> None:
        """Drop all recordings, and their memory."""
        had_any = self._pool is not None
        for recording in self._found.values():
            if recording is not None:
                recording.graph.reset()
        self._found.clear()
        self._pool = None
        if had_any:
            torch.cuda.empty_cache()


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


_current: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


def current() -> Recorder | None:
    """The recorder of the scope, if there is one."""
    return _current.get()


@contextmanager
def recorded() -> Iterator[None]:
    """A scope whose attacks share their recordings; an inner one is part of the outer.

    In it a model's weights may change in place, and must not be replaced by other tensors.
    """
    if _current.get() is not None:
        yield
        return
    recorder = Recorder()
    token = _current.set(recorder)
    try:
        yield
    finally:
        _current.reset(token)
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


def _without_waiting(work: Work, inputs: Tensors) -> tuple[Tensors, str | None]:
    """The outputs, and why the work cannot be recorded, if it waits for the device."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        torch.cuda.set_sync_debug_mode("error")
        return work(*inputs), None
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return work(*inputs), "it waits for the device, as .item() or a boolean index does"


def _record(
    work: Work, inputs: Tensors, rows: int, pool: Any
) -> tuple[_Recording | None, str | None]:
    """The work on `rows` rows, the given ones repeated; or why there is none."""
    place = torch.arange(rows, device=inputs[0].device) % len(inputs[0])
    static = tuple(x[place] for x in inputs)
    graph = torch.cuda.CUDAGraph()
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
        _forget_capture()
        return None, str(error).splitlines()[0]
    finally:
        if was_collecting:
            gc.enable()
        torch.cuda.current_stream().wait_stream(side)
    return _Recording(graph, static, outputs), None


def _forget_capture() -> None:
    """A recording that failed leaves the generator believing that it still goes on."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


def _agree(found: Tensors, expected: Tensors) -> bool:
    for a, b in zip(found, expected, strict=True):
        limit = TOLERANCE.get(b.dtype, 0.05)
        if torch.is_autocast_enabled("cuda"):
            limit = 0.05
        if not bool((a - b).norm() <= limit * b.norm()):
            return False
    return True


_said: set[str] = set()


def _say_once(reason: str) -> None:
    if reason not in _said:
        _said.add(reason)
        warnings.warn(
            f"the model's gradient step cannot be recorded ({reason}); attacks run without, slower",
            stacklevel=2,
        )
