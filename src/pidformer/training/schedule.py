"""The learning rate as a function of the step; there is no scheduler state to save."""

from __future__ import annotations

import math

from pidformer.training.recipe import ScheduleRecipe


def learning_rate(schedule: ScheduleRecipe, peak: float, step: int, steps_per_epoch: int) -> float:
    """Linear warm-up inside a decay over all epochs, at time t = step / steps_per_epoch:

        t < warmup:  warmup_lr + (peak - warmup_lr) t / warmup
        cosine:      min_lr + (peak - min_lr) (1 + cos(pi t / epochs)) / 2
        poly:        min_lr + (peak - min_lr) (1 - t / epochs)^power

    `per: epoch` takes t at the start of the epoch. (DeiT's own loop sets the rate after each
    epoch, so its first two epochs share one rate; we set it at the start.)
    """
    t = step / steps_per_epoch if schedule.per == "step" else step // steps_per_epoch
    if t < schedule.warmup_epochs:
        return schedule.warmup_lr + (peak - schedule.warmup_lr) * t / schedule.warmup_epochs
    done = min(t / schedule.epochs, 1.0)
    if schedule.name == "poly":
        share = (1 - done) ** schedule.power
    else:
        share = (1 + math.cos(math.pi * done)) / 2
    return schedule.min_lr + (peak - schedule.min_lr) * share
