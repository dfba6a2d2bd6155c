"""Images a second of FGSM and PGD against the attack libraries that are installed.

    python -m benchmarks.attacks [--device cuda] [--batch 256] [--rounds 5] [--compile] [--json]
                                 [--run FOLDER [--data FOLDER]]

On the model of a run folder and images of its validation set, or on DeiT-tiny with random weights
and random images whose labels are its own predictions. No random start, same budgets. The rows of a
round run one after the other, in an order that changes from round to round. A row shows the median,
its ratio to the fastest row of another library, and how many images the model in float32 still gets
right afterwards: a faster search must not be a weaker one. With `--compile` every library is given
the compiled model as well.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import timm
import torch
from torch import Tensor, nn

import pidformer
from pidformer.checkpoint import read_recipe
from pidformer.data import EvalImages, open_images
from pidformer.robustness import FGSM, PGD

EPS, STEP, STEPS = 3 / 255, 0.15 / 255, 20
OURS = "pidformer"
Contender = Callable[[Tensor, Tensor], Tensor]
Runs = dict[str, Contender]


class Row(NamedTuple):
    attack: str
    contender: str
    images_per_s: float
    ratio: float | None
    """To the fastest of another library; None if none is installed."""
    right: int
    images: int


def ours(model: nn.Module, is_cuda: bool) -> tuple[Runs, Runs]:
    """FGSM and PGD, PGD with early stop too, in each precision that is fast on the device."""
    settings: dict[str, Any] = {
        "eps": EPS, "step_size": STEP, "steps": STEPS, "random_start": False
    }  # fmt: skip
    one: Runs = {}
    many: Runs = {}
    for precision in ("float32", "tf32", "bfloat16") if is_cuda else ("float32",):
        name = OURS if precision == "float32" else f"{OURS}, {precision}"
        fgsm = FGSM(eps=EPS, precision=precision)
        pgd = PGD(**settings, precision=precision)
        stopping = PGD(**settings, precision=precision, early_stop=True)
        one[name] = lambda x, y, threat=fgsm: threat(model, x, y)
        many[name] = lambda x, y, threat=pgd: threat(model, x, y)
        many[f"{name}, early stop"] = lambda x, y, threat=stopping: threat(model, x, y)
    return one, many


def others(model: nn.Module, device: str) -> tuple[Runs, Runs]:
    """The same of the libraries that are installed."""
    one: Runs = {}
    many: Runs = {}
    if importlib.util.find_spec("torchattacks"):
        import torchattacks

        one["torchattacks"] = torchattacks.FGSM(model, eps=EPS)
        many["torchattacks"] = torchattacks.PGD(
            model, eps=EPS, alpha=STEP, steps=STEPS, random_start=False
        )
    if importlib.util.find_spec("foolbox"):
        import foolbox

        bounded = foolbox.PyTorchModel(model, bounds=(0, 1), device=device)
        first = foolbox.attacks.LinfFastGradientAttack(random_start=False)
        second = foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=STEPS, random_start=False)
        one["foolbox"] = lambda x, y: first.run(bounded, x, y, epsilon=EPS)
        many["foolbox"] = lambda x, y: second.run(bounded, x, y, epsilon=EPS)
    if importlib.util.find_spec("cleverhans"):
        from cleverhans.torch.attacks.fast_gradient_method import fast_gradient_method
        from cleverhans.torch.attacks.projected_gradient_descent import projected_gradient_descent

        inside = {"norm": float("inf"), "clip_min": 0.0, "clip_max": 1.0, "sanity_checks": False}
        one["cleverhans"] = lambda x, y: fast_gradient_method(model, x, EPS, y=y, **inside)
        many["cleverhans"] = lambda x, y: projected_gradient_descent(
            model, x, EPS, STEP, STEPS, y=y, rand_init=False, **inside
        )
    return one, many


def contenders(model: nn.Module, images: Tensor, *, is_compiling: bool) -> dict[str, Runs]:
    """Attack to name to what runs it."""
    found: dict[str, Runs] = {"FGSM": {}, f"PGD-{STEPS}": {}}
    models = {"": model}
    if is_compiling:
        models[", compiled"] = torch.compile(model)
    for suffix, each in models.items():
        for make in (ours(each, images.is_cuda), others(each, images.device.type)):
            for runs, made in zip(found.values(), make, strict=True):
                runs |= {name + suffix: run for name, run in made.items()}
    return found


def seconds(run: Contender, images: Tensor, labels: Tensor) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    run(images, labels)
    if images.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(
    attack: str, runs: Runs, model: nn.Module, images: Tensor, labels: Tensor, rounds: int
) -> list[Row]:
    """A row a contender, timed in turns after a warm-up that also tells what is left."""
    right: dict[str, int] = {}
    for name, run in runs.items():
        try:
            attacked = run(images, labels)
            seconds(run, images, labels)  # once more: a compiled model may compile again
        except Exception as error:
            if name.startswith(OURS):
                raise
            print(f"{attack}, {name}: left out, {type(error).__name__}", file=sys.stderr)
            continue
        with torch.no_grad():
            right[name] = int((model(attacked.detach()).argmax(-1) == labels).sum())
    times: dict[str, list[float]] = {name: [] for name in right}
    names = list(right)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times[name].append(seconds(runs[name], images, labels))
    spent = {name: median(found) for name, found in times.items()}
    best = min((t for name, t in spent.items() if not name.startswith(OURS)), default=None)
    return [
        Row(attack, name, len(images) / t, best and best / t, right[name], len(images))
        for name, t in spent.items()
    ]


def setting(options: argparse.Namespace) -> tuple[str, nn.Module, Tensor, Tensor]:
    """What is attacked, in words and in tensors."""
    if options.run is None:
        torch.manual_seed(0)
        model = timm.create_model("deit_tiny_patch16_224").eval().to(options.device)
        images = torch.rand(options.batch, 3, 224, 224, device=options.device)
        with torch.no_grad():
            return "DeiT-tiny, random weights", model, images, model(images).argmax(-1)
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
    parser.add_argument("--run", type=Path, help="a run folder")
    parser.add_argument("--data", help="its image set; the digits if not given")
    parser.add_argument("--compile", action="store_true", help="also the compiled model")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    what, model, images, labels = setting(options)
    where = torch.cuda.get_device_name() if images.is_cuda else "CPU"
    with torch.no_grad():
        clean = int((model(images).argmax(-1) == labels).sum())
    rows: list[Row] = []
    if not options.json:
        print(f"{what}, {len(images)} images {tuple(images.shape[1:])}, {clean} right, {where}\n")
        print("| attack | contender | images/s | fastest other = 1 | still right |")
        print("|---|---|---|---|---|")
    for attack, runs in contenders(model, images, is_compiling=options.compile).items():
        found = measure(attack, runs, model, images, labels, options.rounds)
        rows += found
        for row in found if not options.json else ():
            ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
            print(
                f"| {attack} | {row.contender} | {row.images_per_s:.2f} | {ratio} | {row.right} |",
                flush=True,
            )
    if options.json:
        head = {"model": what, "device": where, "torch": torch.__version__, "clean": clean}
        print(json.dumps(head | {"rows": [row._asdict() for row in rows]}))


if __name__ == "__main__":
    main()
