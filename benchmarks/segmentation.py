"""Sliding windows in batches against one window at a time.

    python -m benchmarks.segmentation [--device cuda] [--images 4] [--dtype bfloat16]

One process, in turns, after a warm-up; a row is the median time of a batch of images and how many
times slower one window at a time is. The labels of both are compared.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

import pidformer
from pidformer.models.build import build_segmenter
from pidformer.models.sliding import Sliding


def main() -> None:
    options = _options()
    torch.manual_seed(0)
    config: dict[str, Any] = {"name": "pid_deit_tiny_patch16_224", "gains": "segmenter"}
    if options.size < 512:
        config["options"] = {"patch_size": 8}
    segmenter = build_segmenter(config, num_classes=options.classes, image_size=options.size)
    model = pidformer.PixelModel(segmenter).to(options.device).eval()
    size = (options.size * 15 // 16, options.size * 5 // 4)
    images = torch.rand(options.images, 3, *size, device=options.device)
    single = Sliding(
        scale=(4 * options.size, options.size),
        window=options.size,
        stride=options.size * 15 // 16,
        max_windows=options.max_windows,
    )
    where = torch.cuda.get_device_name() if images.is_cuda else "CPU"
    print(
        f"Segmenter-tiny, {options.images} images of {size[1]} x {size[0]}, windows of "
        f"{options.size}, {options.classes} classes, {where}\n"
    )
    print("| views | dtype | windows an image | batched, ms | one at a time, ms | ratio | same |")
    print("|---|---|---|---|---|---|---|")
    rows = [("single", single), ("multi (12)", single.multi())]
    dtypes = ["float32", "bfloat16"] if options.dtype == "both" else [options.dtype]
    for (name, sliding), dtype in itertools.product(rows, dtypes):
        one = replace(sliding, max_windows=1)
        runs: dict[str, Callable[[], Tensor]] = {
            "batched": partial(sliding.labels, model, images),
            "one": partial(_one_at_a_time, one, model, images),
        }
        context = (
            torch.autocast(images.device.type, torch.bfloat16)
            if dtype == "bfloat16"
            else nullcontext()
        )
        with torch.no_grad(), context:
            times, labels = _measure(runs, images, options.rounds)
        agreement = (labels["batched"] == labels["one"]).float().mean().item()
        print(
            f"| {name} | {dtype} | {sliding.count(*size)} | {1e3 * times['batched']:.1f} | "
            f"{1e3 * times['one']:.1f} | {times['one'] / times['batched']:.2f} | "
            f"{100 * agreement:.2f} % |",
            flush=True,
        )


def _one_at_a_time(sliding: Sliding, model: torch.nn.Module, images: Tensor) -> Tensor:
    return torch.cat([sliding.labels(model, image[None]) for image in images])


def _measure(
    runs: dict[str, Callable[[], Tensor]], images: Tensor, rounds: int
) -> tuple[dict[str, float], dict[str, Tensor]]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    labels: dict[str, Tensor] = {}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            if images.is_cuda:
                torch.cuda.synchronize()
            begun = time.perf_counter()
            labels[name] = run()
            if images.is_cuda:
                torch.cuda.synchronize()
            if turn:
                times[name].append(time.perf_counter() - begun)
    return {name: median(found) for name, found in times.items()}, labels


def _options() -> argparse.Namespace:
    is_cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if is_cuda else "cpu")
    parser.add_argument("--images", type=int, default=4 if is_cuda else 1)
    parser.add_argument("--size", type=int, default=512 if is_cuda else 64)
    parser.add_argument("--classes", type=int, default=150 if is_cuda else 11)
    parser.add_argument("--max-windows", type=int, default=32)
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16", "both"], default="both" if is_cuda else "float32"
    )
    parser.add_argument("--rounds", type=int, default=5 if is_cuda else 3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
