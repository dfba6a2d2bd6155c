"""The kernels of a training step: which there are, how long they take, and how long the host takes.

    python -m benchmarks.step [--image 224] [--gains 0.4,0.1,0.05,1 | none] [--mode default]
        [--kernels torch|auto] [--rows 30]

DeiT-tiny on random images of a CUDA device (224 pixels, patch 16, batch 256; or 64 pixels, patch 8,
batch 512), bfloat16 autocast, compiled: forward, loss, backward, clipping and AdamW. "Host" is the
time until forward and backward are launched on an idle device, the least of three.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable

import timm
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

import pidformer.models  # noqa: F401  (registers them)
from pidformer.ops import kernels

STEPS, ROUNDS = 20, 3


def main() -> None:
    options = _options()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.step needs a CUDA device")
    with kernels(options.kernels):
        forward_backward, update = _step(options)

        def step() -> None:
            forward_backward()
            update()

        for _ in range(4):
            step()
        spent = [_timed(step, STEPS) for _ in range(ROUNDS)]
        host = min(_launched(forward_backward) for _ in range(ROUNDS))
        update()
        found = _kernels(step)
    total = sum(spent for _, spent in found.values()) / STEPS
    count = sum(count for count, _ in found.values()) // STEPS
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options}\n")
    print(f"step {min(spent):.2f} to {max(spent):.2f} ms, host {host:.2f} ms")
    print(f"kernels {total:.2f} ms, {count} a step\n")
    print("| ms a step | calls a step | us a call | kernel |\n|---|---|---|---|")
    by_time = sorted(found.items(), key=lambda pair: -pair[1][1])
    for name, (calls, spent_on) in by_time[: options.rows]:
        row = f"{spent_on / STEPS:.3f} | {calls / STEPS:g} | {1e3 * spent_on / calls:.1f}"
        print(f"| {row} | {name[:100]} |")


def _step(options: argparse.Namespace) -> tuple[Callable[[], None], Callable[[], None]]:
    torch.manual_seed(0)
    patch, batch = (16, 256) if options.image == 224 else (8, 512)
    network = timm.create_model(
        "pid_deit_tiny_patch16_224",
        img_size=options.image,
        patch_size=patch,
        drop_path_rate=0.1,
        gains=None if options.gains == "none" else options.gains,
    )
    network = network.cuda().train()
    network.compile(mode=None if options.mode == "default" else options.mode)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)
    images = torch.rand(batch, 3, options.image, options.image, device="cuda")
    labels = torch.randint(0, 1000, (batch,), device="cuda")

    def forward_backward() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(network(images), labels)
        loss.backward()

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return forward_backward, update


def _timed(run: Callable[[], None], calls: int) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(calls):
        run()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begun) / calls


def _launched(run: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    run()
    spent = 1e3 * (time.perf_counter() - begun)
    torch.cuda.synchronize()
    return spent


def _kernels(step: Callable[[], None]) -> dict[str, tuple[int, float]]:
    """Calls and ms of each kernel over all steps."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    found: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            calls, spent = found[event.name]
            found[event.name] = calls + 1, spent + event.device_time / 1e3
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", type=int, choices=(224, 64), default=224)
    parser.add_argument("--gains", default="0.4,0.1,0.05,1")
    parser.add_argument("--mode", choices=("default", "reduce-overhead"), default="default")
    parser.add_argument("--kernels", choices=("torch", "auto"), default="torch")
    parser.add_argument("--rows", type=int, default=30)
    return parser.parse_args()


if __name__ == "__main__":
    main()
