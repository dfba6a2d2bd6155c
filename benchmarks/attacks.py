"""Images a second of FGSM and PGD against a minimal loop and the libraries that are installed.

    python -m benchmarks.attacks [--device cuda] [--batch 256] [--rounds 5] [--steps 20] [--json]
                                 [--compile] [--image 224 | --run FOLDER [--data FOLDER]]

`pidformer bench attack` with a model of your own: that of a run folder, on images of its validation
set. Without `--run`, DeiT-tiny with random weights and random images whose labels are its own
predictions. With `--compile` everybody is given the compiled model as well.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import timm
import torch
from torch import Tensor, nn

import pidformer
from pidformer.bench.attack import AttackSize, compare_attacks, predictions
from pidformer.bench.timing import BenchSetting, header
from pidformer.data import EvalImages, open_images
from pidformer.runs.folder import read_recipe


def attacked(options: argparse.Namespace) -> tuple[str, nn.Module, Tensor, Tensor]:
    """What is attacked, in words and in tensors."""
    if options.run is None:
        torch.manual_seed(0)
        side = options.image
        sizes = {"img_size": side, "patch_size": 16 if side == 224 else 8}
        model = timm.create_model("deit_tiny_patch16_224", **sizes).eval().to(options.device)
        images = torch.rand(options.batch, 3, side, side, device=options.device)
        return "DeiT-tiny, random weights", model, images, predictions(model, images)
    data = read_recipe(options.run)["data"]
    source = open_images(options.data, "val")
    batches = EvalImages(  # every so many images: a set may be sorted by class
        source,
        image_size=data["image_size"],
        batch_size=options.batch,
        crop_ratio=data["crop_ratio"],
        world_size=max(len(source) // options.batch, 1),
        device=options.device,
    )
    images, labels = next(iter(batches))
    return str(options.run), pidformer.load(options.run).to(options.device), images, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of PGD")
    parser.add_argument("--image", type=int, choices=(224, 64), default=224)
    parser.add_argument("--run", type=Path, help="a run folder")
    parser.add_argument("--data", help="its image set; the digits if not given")
    parser.add_argument("--compile", action="store_true", help="also the compiled model")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    what, model, images, labels = attacked(options)
    setting = BenchSetting(device=torch.device(options.device), rounds=options.rounds)
    clean = int((predictions(model, images) == labels).sum())
    size = AttackSize(
        len(images), images.shape[-1], steps=options.steps, is_compiling=options.compile
    )
    head = {"model": what, "images": len(images), "clean": clean, **header(setting)}
    if not options.json:
        print(f"{what}, {len(images)} images {tuple(images.shape[1:])}, {clean} right\n")
        print("| attack | contender | images/s | minimal loop = 1 | |\n|---|---|---|---|---|")
    rows = []
    for group in compare_attacks(setting, size, model, images, labels, what):
        for row in group:
            rows.append(row.to_dict())
            if not options.json:
                numbers = "- | -" if row.value is None else f"{row.value:.2f} | {row.ratio:.2f}"
                print(f"| {row.what} | {row.label} | {numbers} | {row.note} |", flush=True)
    if options.json:
        print(json.dumps(head | {"rows": rows}))


if __name__ == "__main__":
    main()
