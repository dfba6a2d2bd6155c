"""Square attack (Andriushchenko et al. 2020): random search with squares, no gradients."""
# B images (C, H, W)

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pidformer.errors import InputError
from pidformer.robustness.attack import Attack, Bounds, check_steps, logits_of, on_survivors
from pidformer.robustness.draws import Draws
from pidformer.robustness.losses import margin
from pidformer.robustness.threat import Model, check_budget

_SCHEDULE = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
_BLOCK = 64


@dataclass(frozen=True, kw_only=True, repr=False)
class Square(Attack):
    """At most `queries` questions an image, in the L-infinity ball.

    The start is x + eps times vertical stripes of random signs. Each query sets one random square
    to x + eps times one random sign a channel, and keeps it if the margin of the best wrong class
    grows. The squares cover the fraction p of the image: `p_init` at first, halved after 10, 50,
    200, ... 8000 of 10000 queries (in proportion, for another number). An image is done as soon as
    it is misclassified; one that is not broken comes back unchanged.
    """

    eps: float = 3 / 255
    queries: int = 5000
    p_init: float = 0.8

    def __post_init__(self) -> None:
        check_budget("eps", self.eps)
        check_steps(queries=self.queries)
        if not 0 < self.p_init <= 1:
            raise InputError(f"p_init must be in (0, 1], got {self.p_init:g}")

    def perturb(
        self, model: Model, images: Tensor, labels: Tensor, draws: Draws, bounds: Bounds
    ) -> Tensor:
        """One search, on the images that are classified right to begin with."""
        return on_survivors(model, images, labels, draws, [partial(self._run, model, bounds)])

    def _run(
        self, model: Model, bounds: Bounds, images: Tensor, labels: Tensor, draws: Draws
    ) -> Tensor:
        channels, height, width = images.shape[1:]
        result = images.clone()
        rows = torch.arange(len(images), device=images.device)
        stripes = _signs(draws.at(0).uniform(channels, 1, width), images.dtype)
        best = (images + self.eps * stripes).clamp(*bounds)
        best_margin = margin(labels)(logits_of(model, best))
        numbers = best.new_empty(len(best), 0)
        for query in range(self.queries):
            alive = best_margin <= 0
            if not bool(alive.all()):
                result[rows[~alive]] = best[~alive]
                rows, images, labels = rows[alive], images[alive], labels[alive]
                best, best_margin, draws = best[alive], best_margin[alive], draws.of(alive)
                numbers = numbers[alive]
                if not len(rows):
                    break
            place = query % _BLOCK
            if not place:  # the numbers of many queries at once: they are small
                numbers = draws.at(1, query // _BLOCK).uniform(_BLOCK, 2 + channels)
            square = _square(numbers[:, place, :2], self.side(query, height, width), height, width)
            signs = _signs(numbers[:, place, 2:], images.dtype)[:, :, None, None]
            tried = torch.where(square, (images + self.eps * signs).clamp(*bounds), best)
            margins = margin(labels)(logits_of(model, tried))
            is_better = margins > best_margin
            best = torch.where(is_better[:, None, None, None], tried, best)
            best_margin = torch.where(is_better, margins, best_margin)
        result[rows] = best
        return result

    def side(self, query: int, height: int, width: int) -> int:
        """The side of the square of a query, in pixels."""
        halvings = sum(query * 10_000 / self.queries > end for end in _SCHEDULE)
        area = self.p_init / 2**halvings * height * width
        return min(max(round(math.sqrt(area)), 1), height, width)


def _signs(uniform: Tensor, dtype: torch.dtype) -> Tensor:
    return (2 * (uniform > 0.5) - 1).to(dtype)


def _square(uniform: Tensor, side: int, height: int, width: int) -> Tensor:
    """Where a square of this side lies, at one random place an image: (B, 1, H, W), bool."""
    inside = []
    for number, size in zip(uniform.unbind(1), (height, width), strict=True):
        first = (number * (size - side + 1)).long().clamp(max=size - side)[:, None]
        place = torch.arange(size, device=uniform.device)
        inside.append((place >= first) & (place < first + side))
    return inside[0][:, None, :, None] & inside[1][:, None, None, :]
