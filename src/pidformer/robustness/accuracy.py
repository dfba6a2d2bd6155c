"""Accuracy under a threat."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from pidformer.nn import evaluating
from pidformer.robustness.threat import Model, Threat


def accuracy_under(
    model: Model,
    batches: Iterable[tuple[Tensor, Tensor]],
    threat: Threat | None = None,
    *,
    seed: int = 0,
) -> tuple[int, int]:
    """(images classified right, images) over batches of images in [0, 1] with their labels.

    `threat` sees each batch before the model does; None leaves the images as they are.
    """
    correct = total = 0
    for images, labels in batches:
        if threat is not None:
            images = threat(model, images, labels, seed=seed, offset=total)
        with evaluating(model), torch.no_grad():
            correct += int((model(images).argmax(-1) == labels).sum())
        total += len(labels)
    return correct, total
