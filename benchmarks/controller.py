"""What the controller costs: a PID transformer against its softmax twin and timm's own.

    python -m benchmarks.controller [--device cuda] [--batch 256] [--size 224] [--compile]

The twins take turns in one process; a row is the median step and its ratio to the softmax twin.
On CUDA it runs under bf16 autocast, and peak memory of a training step is compared as well.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median

import timm
import torch
from torch import Tensor, nn

import pidformer  # noqa: F401  (registers the models)


def main() -> None:
    options = _options()
    sizes = {"img_size": options.size, "patch_size": options.patch, "num_classes": 100}
    name = "pid_deit_tiny_patch16_224"
    models: dict[str, nn.Module] = {
        "softmax twin": timm.create_model(name, **sizes),
        "PID": timm.create_model(name, gains="0.4,0.1,0.05", **sizes),
        "timm deit_tiny": timm.create_model("deit_tiny_patch16_224", **sizes),
    }
    images = torch.rand(options.batch, 3, options.size, options.size, device=options.device)
    for model in models.values():
        model.to(options.device)
        if options.compile:
            model.compile()
    print(
        f"DeiT-tiny, {options.size} pixels, patch {options.patch}, batch {options.batch}, "
        f"{torch.cuda.get_device_name() if images.is_cuda else 'CPU'}, "
        f"{'compiled' if options.compile else 'eager'}\n"
    )
    print("| step | model | ms | ratio | peak memory, ratio |\n|---|---|---|---|---|")
    for step, run in (("training", _train), ("inference", _infer)):
        times, peaks = _measure(models, run, images, options.rounds)
        for label, spent in times.items():
            ratio = spent / times["softmax twin"]
            peak = f"{peaks[label] / peaks['softmax twin']:.2f}" if images.is_cuda else "-"
            print(f"| {step} | {label} | {1e3 * spent:.1f} | {ratio:.2f} | {peak} |", flush=True)


def _measure(
    models: dict[str, nn.Module],
    run: Callable[[nn.Module, Tensor], None],
    images: Tensor,
    rounds: int,
) -> tuple[dict[str, float], dict[str, int]]:
    """Median seconds, models interleaved after a warm-up, and peak bytes of a step."""
    times: dict[str, list[float]] = {label: [] for label in models}
    peaks = dict.fromkeys(models, 0)
    for turn in range(rounds + 2):
        for label, model in models.items():
            if images.is_cuda:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            begun = time.perf_counter()
            run(model, images)
            if images.is_cuda:
                torch.cuda.synchronize()
                peaks[label] = torch.cuda.max_memory_allocated()
            if turn >= 2:
                times[label].append(time.perf_counter() - begun)
            model.zero_grad(set_to_none=True)
    return {label: median(found) for label, found in times.items()}, peaks


def _autocast(images: Tensor):
    return torch.autocast("cuda", torch.bfloat16) if images.is_cuda else nullcontext()


def _train(model: nn.Module, images: Tensor) -> None:
    model.train()
    with _autocast(images):
        loss = model(images).float().square().mean()
    loss.backward()


def _infer(model: nn.Module, images: Tensor) -> None:
    model.eval()
    with torch.no_grad(), _autocast(images):
        model(images)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=256 if torch.cuda.is_available() else 4)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--patch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
