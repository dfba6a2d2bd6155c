"""The learning rate as a function of the step; there is no scheduler state to save."""

from __future__ import annotations

import math

from pidformer.runs.recipe import ScheduleRecipe


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
    """Steps of the whole run."""
    return schedule.steps if schedule.steps is not None else schedule.epochs * steps_per_epoch
