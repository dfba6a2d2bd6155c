"""What the controller costs after export: ONNX Runtime on a CPU, PID against its softmax twin.

    python -m benchmarks.export [--batch 1] [--rounds 30] [--threads 1]

Models take turns; a row is the median of a call and its ratio to the softmax twin.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import timm
import torch

import pidformer as pf
from pidformer.export import export, image_model


def main() -> None:
    options = _options()
    import onnxruntime

    name, sizes = "pid_deit_tiny_patch16_224", {"num_classes": 1000}
    models = {
        "softmax twin": timm.create_model(name, **sizes),
        "PID": timm.create_model(name, gains="0.4,0.1,0.05", **sizes),
        "P": timm.create_model(name, gains="0.4,0,0", **sizes),
        "converted timm deit_tiny, PID": pf.convert(
            timm.create_model("deit_tiny_patch16_224", **sizes), "0.4,0.1,0.05"
        ),
    }
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    sessions = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (label, model) in enumerate(models.items()):
            path = Path(folder) / f"{number}.onnx"
            export(image_model(pf.PixelModel(model), 3, 224, 224), path)
            sessions[label] = onnxruntime.InferenceSession(
                str(path), settings, providers=["CPUExecutionProvider"]
            )
    images = torch.rand(options.batch, 3, 224, 224).numpy()
    times: dict[str, list[float]] = {label: [] for label in sessions}
    for turn in range(options.rounds + 3):
        for label, session in sessions.items():
            begun = time.perf_counter()
            session.run(None, {"images": images})
            if turn >= 3:
                times[label].append(time.perf_counter() - begun)
    print(
        f"DeiT-tiny, 224 pixels, batch {options.batch}, ONNX Runtime {onnxruntime.__version__}, "
        f"CPU, {options.threads} thread(s)\n\n| model | ms | ratio |\n|---|---|---|"
    )
    base = median(times["softmax twin"])
    for label, spent in times.items():
        print(f"| {label} | {1e3 * median(spent):.1f} | {median(spent) / base:.2f} |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_known_args()[0]


if __name__ == "__main__":
    main()
