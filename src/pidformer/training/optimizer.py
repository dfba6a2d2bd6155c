"""Optimisers, which weights they decay, the learning rate by step, and averages of the weights."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from timm.optim import param_groups_weight_decay
from torch import Tensor, nn

from pidformer.errors import InputError
from pidformer.models.gains import is_gain
from pidformer.runs.recipe import MOST_STEPS, OptimRecipe, ScheduleRecipe


def build_optimizer(
    recipe: OptimRecipe, model: Any, lr: float, device: torch.device
) -> torch.optim.Optimizer:
    """AdamW or SGD (Nesterov).

    Vectors, biases, positions, the class token and learned gains do not decay.
    """
    exempt = {name for name, _ in model.named_parameters() if is_gain(name)}
    if hasattr(model, "no_weight_decay"):
        exempt |= set(model.no_weight_decay())
    groups = param_groups_weight_decay(model, recipe.weight_decay, no_weight_decay_list=exempt)
    if recipe.name == "sgd":
        return torch.optim.SGD(
            groups, lr=lr, momentum=recipe.momentum, nesterov=recipe.momentum > 0
        )
    return torch.optim.AdamW(
        groups, lr=lr, betas=recipe.betas, eps=recipe.eps, fused=device.type == "cuda"
    )


def learning_rate(schedule: ScheduleRecipe, peak: float, step: int, steps_per_epoch: int) -> float:
    """Linear warm-up inside a decay over the whole run, at time t = step / steps_per_epoch:

        t < warmup:  warmup_lr + (peak - warmup_lr) t / warmup
        cosine:      min_lr + (peak - min_lr) (1 + cos(pi t / epochs)) / 2
        poly:        min_lr + (peak - min_lr) (1 - t / epochs)^power

    `per: epoch` takes t at the start of the epoch. (DeiT's own loop sets the rate after each
    epoch, so its first two epochs share one rate; we set it at the start.) A schedule in `steps`
    counts t, its end and its warm-up in steps.
    """
    t: float
    if schedule.steps is not None:
        t, warmup, end = step, float(schedule.warmup_steps), float(schedule.steps)
    else:
        t = step / steps_per_epoch if schedule.per == "step" else step // steps_per_epoch
        warmup, end = schedule.warmup_epochs, float(schedule.epochs)
    if t < warmup:
        return schedule.warmup_lr + (peak - schedule.warmup_lr) * t / warmup
    done = min(t / end, 1.0)
    if schedule.name == "poly":
        share = (1 - done) ** schedule.power
    else:
        share = (1 + math.cos(math.pi * done)) / 2
    return schedule.min_lr + (peak - schedule.min_lr) * share


def last_step(schedule: ScheduleRecipe, steps_per_epoch: int) -> int:
    """Steps of the whole run; refused where they would not end."""
    if schedule.steps is not None:
        return schedule.steps
    found = schedule.epochs * steps_per_epoch
    if found > MOST_STEPS:
        raise InputError(
            f"schedule.epochs={schedule.epochs} of {steps_per_epoch} steps each would be "
            f"{found:.3g} steps; a run may have {MOST_STEPS:g}"
        )
    return found


class WeightAverage:
    """Moving average a <- decay a + (1 - decay) w of a model's parameters, sharded or not."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._weights: list[Tensor] = list(model.parameters())
        self.reset()

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self._averages, self._weights, 1 - self.decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model runs on the average inside this block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for weight, average in zip(self._weights, self._averages, strict=True):
            held = weight.detach().clone()
            weight.copy_(average)
            average.copy_(held)

    def reset(self) -> None:
        """Start again from the model's present weights."""
        self._averages = [weight.detach().clone() for weight in self._weights]
