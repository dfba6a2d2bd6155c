"""Which wrong class to aim at."""

from __future__ import annotations

from torch import Tensor

from pidformer.robustness.attack import logits_of
from pidformer.robustness.threat import Model


def likely_class(model: Model, images: Tensor, labels: Tensor, place: int) -> Tensor | None:
    """The most likely wrong class of each clean image (place 0), the next (1), ...; else None."""
    logits = logits_of(model, images)
    if place >= logits.shape[1] - 1:
        return None
    others = logits.scatter(1, labels[:, None], -float("inf"))
    return others.topk(place + 1, dim=1).indices[:, place]
