"""One call on a device: its seconds, its peak memory, its kernels alone."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


def seconds(run: Callable[[], object], calls: int, device: torch.device) -> float:
    """Seconds per call, by the clock, from an idle device to an idle device."""
    wait(device)
    begun = time.perf_counter()
    for _ in range(calls):
        run()
    wait(device)
    return (time.perf_counter() - begun) / calls


def wait(device: torch.device) -> None:
    """Until the device has done its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def free_memory(device: torch.device) -> None:
    """Give back the memory of a GPU that nothing holds any more."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def recorded(run: Callable[[], object]) -> Callable[[], object]:
    """What replays the kernels of a call."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # once where it is recorded, so that nothing is set up there
        run()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph, stream=side):
        run()
    return _Replay(graph, run)


@dataclass(frozen=True)
class _Replay:
    """The kernels of a recorded call, with what they read and write."""

    graph: torch.cuda.CUDAGraph
    run: Callable[[], object]
    """Kept for its tensors: a graph holds their addresses alone."""

    def __call__(self) -> None:
        self.graph.replay()


def peak_bytes(run: Callable[[], object], device: torch.device) -> int | None:
    """What a call allocates at its peak, beyond what was there before; None without a GPU.

    The most of a few calls: what the call before has not given back yet hides as much.
    """
    return max(_peak(run, device) for _ in range(3)) if device.type == "cuda" else None


def _peak(run: Callable[[], object], device: torch.device) -> int:
    gc.collect()
    wait(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    wait(device)
    return torch.cuda.max_memory_allocated(device) - before
