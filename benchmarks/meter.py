"""Peak memory of the oversmoothing meter, beside the forward pass and the matrices themselves.

    python -m benchmarks meter [--size 512] [--images 2] [--rounds 2]

timm's ViT-tiny with random weights on a CPU: with 512 pixels 1,025 tokens. Each row is a process,
whose peak resident memory is printed: the libraries and the network are in all of them.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable

import timm
import torch
from torch import Tensor, nn

from pidformer import analysis


def _forward(model: nn.Module, images: Tensor) -> None:
    with torch.no_grad():
        model(images)


ROWS: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "forward": _forward,
    "measures": analysis.attention_measures,
    "matrices": analysis.attention_spectrum,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=512, help="pixels")
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--row", choices=ROWS, help="this one alone, here")
    given = parser.parse_args()
    if given.row is None:
        for row in ROWS:
            words = [sys.executable, "-m", "benchmarks.meter", *sys.argv[1:], "--row", row]
            peaks = [subprocess.check_output(words, text=True).strip() for _ in range(given.rounds)]
            print(f"{row:10}{', '.join(peaks)} MB", flush=True)
        return
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=given.size).eval()
    ROWS[given.row](model, torch.rand(given.images, 3, given.size, given.size))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000)


if __name__ == "__main__":
    main()
