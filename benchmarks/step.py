"""The kernels of a training step: which there are, how long they take, and how long the host takes.

    python -m benchmarks.step [--image 224] [--depth 12] [--gains 0.4,0.1,0.05,1 | none]
        [--mode default] [--option coordinate_descent_tuning=true ...]
        [--kernels torch|auto|triton] [--rows 30]

DeiT-tiny on random images of a CUDA device (224 pixels, patch 16, batch 256; or 64 pixels, patch 8,
batch 512), bfloat16 autocast, compiled with the trainer's options: forward, loss, backward,
clipping and AdamW. "Host" is the time until forward and backward are launched on an idle device,
the least of three. Loss and gradient norm are those of the last of four steps, to tell whether two
ways to compile compute the same. `python -m benchmarks.ways` runs several side by side.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import pidformer.models  # noqa: F401  (registers them)
from pidformer.ops import kernels
from pidformer.training.engine import compile_options

STEPS, ROUNDS, PROFILED = 20, 3, 5


def main() -> None:
    options = _options()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.step needs a CUDA device")
    with kernels(options.kernels), _turn(options.beside, options.limit) as my_turn:
        begun = time.perf_counter()
        forward_backward, update = _step(options)
        for _ in range(4):
            loss = forward_backward()
            norm = update()
        numbers = f"loss {loss.item():.6f}, gradient norm {norm.item():.6f}"
        compiled = time.perf_counter() - begun
        my_turn()

        def step() -> None:
            forward_backward()
            update()

        spent = [_timed(step, STEPS) for _ in range(ROUNDS)]
        host = min(_launched(forward_backward) for _ in range(ROUNDS))
        update()
        found = _kernels(step)
    total = sum(spent for _, spent in found.values()) / PROFILED
    count = sum(count for count, _ in found.values()) // PROFILED
    print(
        f"step {min(spent):.2f} to {max(spent):.2f} ms, kernels {total:.2f} ms ({count} a step), "
        f"host {host:.2f} ms, compiled in {compiled:.0f} s; {numbers}\n"
    )
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {vars(options)}\n")
    print_kernels(found, PROFILED, options.rows)


def _step(options: argparse.Namespace) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    torch.manual_seed(0)
    patch, batch = (16, 256) if options.image == 224 else (8, 512)
    network = timm.create_model(
        "pid_deit_tiny_patch16_224",
        img_size=options.image,
        patch_size=patch,
        depth=options.depth,
        drop_path_rate=0.1,
        gains=None if options.gains == "none" else options.gains,
    )
    network = network.cuda().train()
    network.compile(options=compile_options(options.mode) | _known(options.option))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)
    images = torch.rand(batch, 3, options.image, options.image, device="cuda")
    labels = torch.randint(0, 1000, (batch,), device="cuda")

    def forward_backward() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(network(images), labels)
        loss.backward()
        return loss.detach()

    def update() -> Tensor:
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return norm

    return forward_backward, update


def _known(given: list[str]) -> dict[str, Any]:
    """Inductor's options as NAME=VALUE; those that this torch does not have are left out, aloud."""
    from torch import _inductor

    options: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in _inductor.list_options():
            print(f"torch {torch.__version__} has no option {name}: left out")
            continue
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


@contextmanager
def _turn(folder: Path | None, limit: int) -> Iterator[Callable[[], None]]:
    """For several processes on one device, which share a folder: compile together, time in turn.

    Inside, a process compiles, and what Inductor times to choose between kernels it times alone.
    The function that is given waits until all have compiled and the device is free. A process that
    has not compiled within `limit` seconds ends, so that the others need not wait.
    """
    if folder is None:
        yield lambda: None
        return
    from torch._inductor.runtime import benchmarking

    with (folder / "compiling").open("w") as compiling, (folder / "choosing").open("w") as choosing:
        fcntl.flock(compiling, fcntl.LOCK_SH)
        signal.alarm(limit)
        chooser: Any = benchmarking.benchmarker
        benchmark = chooser.benchmark_gpu

        def alone(*args: Any, **keywords: Any) -> Any:
            fcntl.flock(choosing, fcntl.LOCK_EX)
            try:
                return benchmark(*args, **keywords)
            finally:
                fcntl.flock(choosing, fcntl.LOCK_UN)

        chooser.benchmark_gpu = alone

        def my_turn() -> None:
            signal.alarm(0)  # it has compiled
            torch.cuda.synchronize()
            fcntl.flock(compiling, fcntl.LOCK_EX)

        yield my_turn


def _timed(run: Callable[[], None], calls: int) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(calls):
        run()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begun) / calls


def _launched(run: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    run()
    spent = 1e3 * (time.perf_counter() - begun)
    torch.cuda.synchronize()
    return spent


def _kernels(step: Callable[[], None]) -> dict[str, tuple[int, float]]:
    """Calls and ms of each kernel over the profiled steps."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    return kernel_times(seen)


def kernel_times(seen: Any) -> dict[str, tuple[int, float]]:
    """Calls and ms of each kernel that a profiler saw."""
    found: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            calls, spent = found[event.name]
            found[event.name] = calls + 1, spent + event.device_time / 1e3
    return found


def print_kernels(found: dict[str, tuple[int, float]], steps: int, rows: int) -> None:
    """The kernels that took most of so many steps."""
    print("| ms per step | calls per step | us per call | kernel |\n|---|---|---|---|")
    for name, (calls, spent) in sorted(found.items(), key=lambda pair: -pair[1][1])[:rows]:
        row = f"{spent / steps:.3f} | {calls / steps:g} | {1e3 * spent / calls:.1f}"
        print(f"| {row} | {name[:100]} |", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", type=int, choices=(224, 64), default=224)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--gains", default="0.4,0.1,0.05,1")
    modes = ("default", "reduce-overhead", "max-autotune")
    parser.add_argument("--mode", choices=modes, default="default")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--beside", type=Path, help="folder shared with other such processes")
    parser.add_argument("--limit", type=int, default=0, metavar="SECONDS", help="to compile, then")
    parser.add_argument("--kernels", choices=("torch", "auto", "triton"), default="torch")
    parser.add_argument("--rows", type=int, default=30)
    return parser.parse_args()


if __name__ == "__main__":
    main()
