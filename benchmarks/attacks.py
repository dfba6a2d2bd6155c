"""Images a second of FGSM and PGD against the attack libraries that are installed.

    python -m benchmarks.attacks [--device cuda] [--batch 8] [--rounds 5]

DeiT-tiny with random weights and random images of 224 x 224, no random start, same budgets. The
rows of a round run one after the other, in an order that changes from round to round; a row shows
the median, and its ratio to ours without early stop. A network with random weights gives most
images a wrong class before any attack, so the labels are its own predictions: early stop gains
only from the images that the attack breaks.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from statistics import median

import timm
import torch
from torch import Tensor, nn

from pidformer.robustness import FGSM, PGD

EPS, STEP, STEPS = 3 / 255, 0.15 / 255, 20
Contender = Callable[[Tensor, Tensor], object]


def contenders(model: nn.Module, device: str) -> dict[str, dict[str, Contender]]:
    """Attack to name to what runs it."""
    pgd = {"eps": EPS, "step_size": STEP, "steps": STEPS, "random_start": False}
    fgsm_runs: dict[str, Contender] = {"pidformer": lambda x, y: FGSM(eps=EPS)(model, x, y)}
    pgd_runs: dict[str, Contender] = {
        "pidformer": lambda x, y: PGD(**pgd)(model, x, y),
        "pidformer, early stop": lambda x, y: PGD(**pgd, early_stop=True)(model, x, y),
    }
    if importlib.util.find_spec("torchattacks"):
        import torchattacks

        one = torchattacks.FGSM(model, eps=EPS)
        many = torchattacks.PGD(model, eps=EPS, alpha=STEP, steps=STEPS, random_start=False)
        fgsm_runs["torchattacks"], pgd_runs["torchattacks"] = one, many
    if importlib.util.find_spec("foolbox"):
        import foolbox

        bounded = foolbox.PyTorchModel(model, bounds=(0, 1), device=device)
        first = foolbox.attacks.LinfFastGradientAttack(random_start=False)
        second = foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=STEPS, random_start=False)
        fgsm_runs["foolbox"] = lambda x, y: first.run(bounded, x, y, epsilon=EPS)
        pgd_runs["foolbox"] = lambda x, y: second.run(bounded, x, y, epsilon=EPS)
    if importlib.util.find_spec("cleverhans"):
        from cleverhans.torch.attacks.fast_gradient_method import fast_gradient_method
        from cleverhans.torch.attacks.projected_gradient_descent import projected_gradient_descent

        inside = {"norm": float("inf"), "clip_min": 0.0, "clip_max": 1.0, "sanity_checks": False}
        fgsm_runs["cleverhans"] = lambda x, y: fast_gradient_method(model, x, EPS, y=y, **inside)
        pgd_runs["cleverhans"] = lambda x, y: projected_gradient_descent(
            model, x, EPS, STEP, STEPS, y=y, rand_init=False, **inside
        )
    return {"FGSM": fgsm_runs, f"PGD-{STEPS}": pgd_runs}


def seconds(run: Contender, images: Tensor, labels: Tensor) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    run(images, labels)
    if images.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(
    runs: dict[str, Contender], images: Tensor, labels: Tensor, rounds: int
) -> dict[str, float]:
    """Median seconds of each contender, after one warm-up, interleaved."""
    for run in runs.values():
        seconds(run, images, labels)
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times[name].append(seconds(runs[name], images, labels))
    return {name: median(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = timm.create_model("deit_tiny_patch16_224").eval().to(options.device)
    images = torch.rand(options.batch, 3, 224, 224, device=options.device)
    with torch.no_grad():
        labels = model(images).argmax(-1)
    print("| attack | library | images/s | time, ours = 1 |\n|---|---|---|---|")
    for attack, runs in contenders(model, options.device).items():
        times = measure(runs, images, labels, options.rounds)
        for name, spent in times.items():
            rate, ratio = options.batch / spent, spent / times["pidformer"]
            print(f"| {attack} | {name} | {rate:.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
