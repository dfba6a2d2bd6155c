"""Square attack (Andriushchenko et al. 2020): random search with squares, no gradients."""
# B images (C, H, W)

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pidformer.errors import InputError
from pidformer.robustness.attack import (
    Attack,
    Bounds,
    check_steps,
    confirm,
    logits_of,
    on_survivors,
)
from pidformer.robustness.draws import Draws
from pidformer.robustness.geometry import Norm, check_ball
from pidformer.robustness.losses import margin
from pidformer.robustness.pyramids import moved, tiled, window
from pidformer.robustness.threat import Model

_SCHEDULE = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
_BLOCK = 64


@dataclass(frozen=True, kw_only=True, repr=False)
class Square(Attack):
    """At most `queries` questions an image, each a random change of one or two squares.

    A change is kept if the margin of the best wrong class grows. In the L-infinity ball, the start
    is x + eps times vertical stripes of random signs, and a query sets a square to x + eps times
    one random sign a channel. In the L2 ball, the start is a grid of bumps, and a query moves the
    mass of two squares into one, shaped by another pair of bumps (see `pyramids`).

    The squares cover the fraction p of the image: `p_init` at first, halved after 10, 50, 200, ...
    8000 of 10000 queries (in proportion, for another number). An image is done as soon as it is
    misclassified; one that is not broken comes back unchanged.
    """

    eps: float = 3 / 255
    norm: Norm = "Linf"
    queries: int = 5000
    p_init: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ball(self.eps, self.norm)
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
        drawn = channels + (2 if self.norm == "Linf" else 5)
        result = images.clone()
        rows = torch.arange(len(images), device=images.device)
        best = self._start(images, bounds, draws.at(0))
        best_margin = margin(labels)(logits_of(model, best))
        numbers = best.new_empty(len(best), 0)
        for query in range(self.queries):
            alive = confirm(model, best, labels, best_margin <= 0)
            if not bool(alive.all()):
                result[rows[~alive]] = best[~alive]
                rows, images, labels = rows[alive], images[alive], labels[alive]
                best, best_margin, draws = best[alive], best_margin[alive], draws.of(alive)
                numbers = numbers[alive]
                if not len(rows):
                    break
            place = query % _BLOCK
            if not place:  # the numbers of many queries at once: they are small
                numbers = draws.at(1, query // _BLOCK).uniform(_BLOCK, drawn)
            side = self.side(query, height, width)
            tried = self._propose(images, best, bounds, numbers[:, place], side)
            margins = margin(labels)(logits_of(model, tried))
            is_better = margins > best_margin
            best = torch.where(is_better[:, None, None, None], tried, best)
            best_margin = torch.where(is_better, margins, best_margin)
        result[rows] = best
        return result

    def _start(self, images: Tensor, bounds: Bounds, draws: Draws) -> Tensor:
        if self.norm == "L2":
            change = tiled(images, draws)
        else:
            channels, _, width = images.shape[1:]
            change = _signs(draws.uniform(channels, 1, width), images.dtype)
        return (images + self.eps * change).clamp(*bounds)

    def _propose(
        self, images: Tensor, best: Tensor, bounds: Bounds, numbers: Tensor, side: int
    ) -> Tensor:
        if self.norm == "L2":
            return (images + moved(best - images, numbers, side, self.eps)).clamp(*bounds)
        square, _, _ = window(numbers[:, :2], side, *images.shape[2:])
        signs = _signs(numbers[:, 2:], images.dtype)[:, :, None, None]
        return torch.where(square, (images + self.eps * signs).clamp(*bounds), best)

    def side(self, query: int, height: int, width: int) -> int:
        """The side of the squares of a query, in pixels; in the L2 ball odd, and at least 3."""
        halvings = sum(query * 10_000 / self.queries > end for end in _SCHEDULE)
        area = self.p_init / 2**halvings * height * width
        side = max(round(math.sqrt(area)), 1)
        if self.norm == "L2":
            side = max(side, 3) + (side > 3 and side % 2 == 0)
        return min(side, height, width)


def _signs(uniform: Tensor, dtype: torch.dtype) -> Tensor:
    return (2 * (uniform > 0.5) - 1).to(dtype)
