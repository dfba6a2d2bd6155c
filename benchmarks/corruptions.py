"""Images a second of the 15 corruptions: ours against NumPy, SciPy and Pillow image by image.

    python -m benchmarks.corruptions [--device cuda] [--size 64] [--batch 256] [--severity 3]

Both sides run in this process, alternating, and take and give the same float tensors; a row is the
best of `--repeats`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import geometric_mean

import numpy as np
import torch

from pidformer.robustness.corruptions import CORRUPTIONS, Corruption
from pidformer.robustness.corruptions.corruption import constants_size, severity_constants
from pidformer.robustness.corruptions.weather import frost_textures
from tests.robustness import reading
from tests.robustness.photographs import photographs


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    images = photographs(options.batch, options.size).to(options.device)
    few = images[: options.reading_images].cpu()
    where = torch.cuda.get_device_name() if images.is_cuda else f"CPU, {options.threads} thread(s)"
    print(f"{options.batch} images of {options.size} pixels, severity {options.severity}, {where}")
    print(f"{'corruption':<20}{'ours /s':>12}{'NumPy /s':>12}{'ratio':>10}")
    ratios = []
    for name in CORRUPTIONS:
        corruption = Corruption(name=name, severity=options.severity)
        ours = theirs = 0.0
        corruption.corrupt(images)  # tables, textures, plans
        for _ in range(options.repeats):
            ours = max(ours, len(images) / _seconds(partial(corruption.corrupt, images)))
            read = _reader(name, options.severity, options.size, few)
            theirs = max(theirs, len(few) / _seconds(read))
        ratios.append(ours / theirs)
        print(f"{name:<20}{ours:>12,.0f}{theirs:>12,.0f}{ratios[-1]:>10.1f}", flush=True)
    print(f"{'geometric mean':<44}{geometric_mean(ratios):>10.1f}")


def _reader(
    name: str, severity: int, size: int, images: torch.Tensor
) -> Callable[[], torch.Tensor]:
    constants = severity_constants(name, severity, constants_size(size, size))
    fields = reading.Fields(np.random.default_rng(0))
    more = {}
    if name == "frost":
        more["textures"] = frost_textures(constants["texture_scale"]).numpy()

    def corrupt(image: torch.Tensor) -> torch.Tensor:
        pixels = np.rint(image.permute(1, 2, 0).double().numpy() * 255) / 255
        result = reading.quantise(getattr(reading, name)(pixels, constants, fields, **more))
        return torch.from_numpy(result).permute(2, 0, 1).float() / 255

    def read() -> torch.Tensor:
        return torch.stack([corrupt(image) for image in images])

    return read


def _seconds(action: Callable[[], object]) -> float:
    _wait()
    start = time.perf_counter()
    action()
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--reading-images", type=int, default=16, help="images the NumPy side gets")
    return parser.parse_args()


if __name__ == "__main__":
    main()
