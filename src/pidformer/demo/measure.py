"""One model of the demonstration: train it, attack it, look at its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pidformer import results
from pidformer.analysis import token_similarity
from pidformer.data import EvalImages, open_images
from pidformer.robustness import FGSM, PGD, Threat, accuracy_under
from pidformer.runs.model import load
from pidformer.training import load_recipe
from pidformer.training.run import train

BUDGETS = (0.025, 0.05, 0.075, 0.1)
"""Largest change of a pixel in [0, 1]; a grey level of the digits is 1/16."""
PGD_STEPS = 10
ATTACKED_EVERY = 2
"""Attacks see every second validation image, to stay within two minutes."""
MADE_BY = "pidformer demo"
"""What marks the records of a demonstration."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One model and seed, and the run folder that it is trained into."""

    model: str
    seed: int
    run: Path
    device: str = "cpu"
    overrides: tuple[str, ...] = ()

    @property
    def recipe(self) -> str:
        return f"digits/{self.model}.yaml"


def work(job: Job) -> list[results.Record]:
    """Train a job's model (or go on where its folder stands) and measure it."""
    recipe = load_recipe(job.recipe, [*job.overrides, f"seed={job.seed}"])
    train(recipe, job.run, device=job.device, is_shown=False)
    return measure(job)


def measure(job: Job) -> list[results.Record]:
    """Clean accuracy and token similarity on all validation images, accuracy under attack."""
    model = load(job.run).to(job.device)
    images, labels = validation_images(job.device)
    attacked = (images[::ATTACKED_EVERY], labels[::ATTACKED_EVERY])
    found = [_accuracy(job, model, "clean", (images, labels), None, 0.0)]
    found.append(_accuracy(job, model, "attack", attacked, None, 0.0))
    for eps in BUDGETS:
        for threat in (FGSM(eps=eps), PGD(eps=eps, steps=PGD_STEPS, step_size=eps / 4)):
            found.append(_accuracy(job, model, "attack", attacked, threat, eps))
    layers = token_similarity(model, images).tolist()
    metrics = {f"layer_{depth}": value for depth, value in enumerate(layers, 1)}
    found.append(_record(job, "similarity", metrics, images=len(images)))
    return found


def validation_images(device: str = "cpu") -> tuple[Tensor, Tensor]:
    """All 360 validation digits and their labels."""
    source = open_images("digits", "val")
    (batch,) = EvalImages(source, image_size=8, batch_size=len(source), device=device)
    return batch.images, batch.targets


def _accuracy(
    job: Job,
    model: Any,
    kind: str,
    batch: tuple[Tensor, Tensor],
    threat: Threat | None,
    eps: float,
) -> results.Record:
    correct, total = accuracy_under(model, [batch], threat, seed=job.seed)
    metrics = {"correct": correct, "images": total, "top1": 100 * correct / total}
    attack = type(threat).__name__ if threat is not None else None
    every = 1 if kind == "clean" else ATTACKED_EVERY
    return _record(
        job, kind, metrics, attack=attack, eps=eps, threat=repr(threat), every_image=every
    )


def _record(job: Job, kind: str, metrics: dict[str, float], **more: Any) -> results.Record:
    settings = {
        "by": MADE_BY,
        "model": job.model,
        "recipe": job.recipe,
        "overrides": list(job.overrides),
        "seed": job.seed,
        "run": str(job.run),
        "data": "digits/val",
        "device": job.device,
        "machine": results.machine(),
    }
    return results.Record(kind=kind, metrics=metrics, settings=settings | more)
