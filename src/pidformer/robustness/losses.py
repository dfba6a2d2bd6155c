"""What attacks climb: one number per image, larger where the true label y is less likely.

Logits z (B, classes), sorted z_(1) >= z_(2) >= ...; t is a class to be taken for.

    cross entropy   log sum_c exp z_c - z_y
    margin          max_{c != y} z_c - z_y                       (above 0: misclassified)
    DLR             (max_{c != y} z_c - z_y) / (z_(1) - z_(3))
    targeted DLR    (z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2)

The last two (Croce & Hein 2020) do not change when logits are scaled or shifted, so a model cannot
hide behind large logits, whose cross entropy has no gradient left in floating point.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from pidformer.errors import InputError


class Loss(NamedTuple):
    """Logits (B, classes) to one loss an image (B,): a formula and the classes it is about."""

    formula: Callable[..., Tensor]
    classes: tuple[Tensor, ...]
    """The true labels, then the targets, if there are any."""

    def __call__(self, logits: Tensor) -> Tensor:
        return self.formula(logits, *self.classes)


_TINY = 1e-12


def cross_entropy(labels: Tensor) -> Loss:
    """The cross entropy of the true label."""
    return Loss(_cross_entropy, (labels,))


def margin(labels: Tensor) -> Loss:
    """The logit of the best other class minus that of the true one."""
    return Loss(_margin, (labels,))


def dlr(labels: Tensor) -> Loss:
    """Difference of logits ratio."""
    return Loss(_dlr, (labels,))


def targeted_dlr(labels: Tensor, targets: Tensor) -> Loss:
    """Difference of logits ratio towards one other class."""
    return Loss(_targeted_dlr, (labels, targets))


def logit_difference(labels: Tensor, targets: Tensor) -> Loss:
    """z_t - z_y: above 0 where the target is more likely than the true class."""
    return Loss(_logit_difference, (labels, targets))


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def _margin(logits: Tensor, labels: Tensor) -> Tensor:
    others = logits.scatter(1, labels[:, None], -float("inf"))
    return others.amax(1) - _pick(logits, labels)


def _dlr(logits: Tensor, labels: Tensor) -> Tensor:
    top = _top(logits, 3)
    return _margin(logits, labels) / (top[:, 0] - top[:, 2] + _TINY)


def _targeted_dlr(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    top = _top(logits, 4)
    scale = top[:, 0] - (top[:, 2] + top[:, 3]) / 2
    return _logit_difference(logits, labels, targets) / (scale + _TINY)


def _logit_difference(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    return _pick(logits, targets) - _pick(logits, labels)


def _pick(logits: Tensor, classes: Tensor) -> Tensor:
    return logits.gather(1, classes[:, None])[:, 0]


def _top(logits: Tensor, count: int) -> Tensor:
    if logits.shape[1] < count:
        raise InputError(f"this loss needs at least {count} classes, got {logits.shape[1]}")
    return logits.topk(count, dim=1).values
