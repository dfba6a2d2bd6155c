"""What attacks climb: one number per image (B,), larger where the true label y is less likely.

Logits z (B, classes), sorted z_(1) >= z_(2) >= ...; t is a class to be taken for.

    cross entropy   log sum_c exp z_c - z_y
    margin          max_{c != y} z_c - z_y                       (above 0: misclassified)
    DLR             (max_{c != y} z_c - z_y) / (z_(1) - z_(3))
    targeted DLR    (z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2)

The last two (Croce & Hein 2020) do not change when logits are scaled or shifted, so a model cannot
hide behind large logits, whose cross entropy has no gradient left in floating point.
"""

import torch.nn.functional as F
from torch import Tensor

from pidformer.errors import InputError

_TINY = 1e-12


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The logit of the best other class minus that of the true one."""
    others = logits.scatter(1, labels[:, None], -float("inf"))
    return others.amax(1) - _pick(logits, labels)


def dlr(logits: Tensor, labels: Tensor) -> Tensor:
    """Difference of logits ratio."""
    top = _top(logits, 3)
    return margin(logits, labels) / (top[:, 0] - top[:, 2] + _TINY)


def targeted_dlr(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Difference of logits ratio towards one other class."""
    top = _top(logits, 4)
    scale = top[:, 0] - (top[:, 2] + top[:, 3]) / 2
    return logit_difference(logits, labels, targets) / (scale + _TINY)


def logit_difference(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """z_t - z_y: above 0 where the target is more likely than the true class."""
    return _pick(logits, targets) - _pick(logits, labels)


def _pick(logits: Tensor, classes: Tensor) -> Tensor:
    return logits.gather(1, classes[:, None])[:, 0]


def _top(logits: Tensor, count: int) -> Tensor:
    if logits.shape[1] < count:
        raise InputError(
            f"this loss needs at least {count} classes, got {logits.shape[1]}; PGD, APGD with "
            "loss='ce', FAB and Square take any"
        )
    return logits.topk(count, dim=1).values
