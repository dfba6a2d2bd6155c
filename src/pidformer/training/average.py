"""Exponential moving average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """a <- decay a + (1 - decay) w over a model's parameters, sharded or not."""

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
