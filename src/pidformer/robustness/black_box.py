"""Attacks without gradients: Square (Andriushchenko et al. 2020), random search with squares, which
in the L2 ball moves pyramids of mass between windows; and SPSA, gradients by finite differences."""

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor

from pidformer.data.arguments import check_counts
from pidformer.errors import InputError, shortened
from pidformer.robustness.attack import Attack, AttackBatch, BallAttack, on_survivors
from pidformer.robustness.balls import TINY, Bounds, length
from pidformer.robustness.losses import margin
from pidformer.robustness.queries import check_finite, confirm, is_right, logits_of
from pidformer.robustness.threat import Draws, Model, check_budget, random_signs

# B images (C, H, W) of D numbers, S samples


def pyramid(rows: int, columns: int) -> Tensor:
    """A bump (rows, columns) in float64: sum of 1 / (k + 1)^2 over the squares k around its centre.

    Square k holds the entries at most k rows and k columns away, k up to half the longer side.
    """
    away = [(torch.arange(size) - size // 2).abs() for size in (rows, columns)]
    distance = torch.maximum(away[0][:, None], away[1][None, :])
    steps = 1 / torch.arange(1, max(rows, columns) // 2 + 2, dtype=torch.float64) ** 2
    return steps.flip(0).cumsum(0).flip(0)[distance]


@cache
def pair(side: int) -> Tensor:
    """A bump above its negative, each of length 1, together of length 1: (side, side), float64."""
    halves = [pyramid(rows, side) for rows in (side // 2, side - side // 2) if rows]
    halves = [half / half.norm() for half in halves]
    both = torch.cat([*halves[:-1], -halves[-1]])
    return both / both.norm()


def tiled(images: Tensor, draws: Draws) -> Tensor:
    """Where the search starts: about 5 x 5 pairs side by side, each one's signs and turn random."""
    channels, height, width = images.shape[1:]
    side = max(min(height, width) // 5, 1)
    down, across = height // side, width // side
    numbers = draws.uniform(down, across, 1 + channels)
    upright = pair(side).to(images)
    is_turned = numbers[..., :1, None] > 0.5
    turned = torch.where(is_turned, upright.T, upright)  # (B, down, across, s, s)
    signs = _signs(numbers[..., 1:], images.dtype)
    tiles = signs[..., None, None] * turned[:, :, :, None]  # (B, down, across, C, s, s)
    change = torch.zeros_like(images)
    top, left = (height - down * side) // 2, (width - across * side) // 2
    inside = change[:, :, top : top + down * side, left : left + across * side]
    inside.copy_(tiles.permute(0, 3, 1, 4, 2, 5).reshape_as(inside))
    return change / (length(change, "L2") + TINY)


def moved(change: Tensor, numbers: Tensor, side: int, eps: float) -> Tensor:
    """The change with the mass of two random windows in the first of them, its length `eps` again.

    In each channel the first window takes the direction of w / |w| + s n, w what it holds, n a pair
    of bumps, s a random sign, and the length sqrt(|both windows|^2 + unused / C); the second window
    is emptied. Unused is eps^2 minus the squared length of the whole: what the box has cut off.
    `numbers` (B, 5 + C) are uniform: two corners, the turn, a sign per channel.
    """
    channels, height, width = change.shape[1:]
    (first, rows, columns), (second, _, _) = (
        window(numbers[:, place : place + 2], side, height, width) for place in (0, 2)
    )
    # The pair at the place of the first window; outside of it, whatever, and masked.
    upright = pair(side).to(change)
    straight = upright[rows[:, :, None], columns[:, None, :]]
    turned = upright[columns[:, None, :], rows[:, :, None]]
    bumps = torch.where(numbers[:, 4, None, None] > 0.5, turned, straight)[:, None]
    signs = _signs(numbers[:, 5:], change.dtype)[:, :, None, None]

    unused = (eps**2 - change.square().sum((1, 2, 3), keepdim=True)).clamp(min=0)
    held = (change * (first | second)).square().sum((2, 3), keepdim=True)  # (B, C, 1, 1)
    old = change * first
    new = (old / (_norm(old) + TINY) + signs * bumps) * first
    new = new / (_norm(new) + TINY) * (held + unused / channels).sqrt()
    change = torch.where(first, new, change * ~second)
    return eps * change / (length(change, "L2") + TINY)


def window(uniform: Tensor, side: int, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """A window at one random place per image, (B, 1, H, W) bool; rows (B, H) and columns in it."""
    inside, places = [], []
    for number, size in zip(uniform.unbind(1), (height, width), strict=True):
        first = (number * (size - side + 1)).long().clamp(max=size - side)[:, None]
        place = torch.arange(size, device=uniform.device) - first
        inside.append((place >= 0) & (place < side))
        places.append(place.clamp(0, side - 1))
    return inside[0][:, None, :, None] & inside[1][:, None, None, :], places[0], places[1]


def _norm(x: Tensor) -> Tensor:
    """One number per channel, (B, C, 1, 1)."""
    return torch.linalg.vector_norm(x, 2, dim=(2, 3), keepdim=True)


_SCHEDULE = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
_BLOCK = 64


@dataclass(frozen=True, kw_only=True, repr=False)
class Square(BallAttack):
    """At most `queries` random changes of one or two squares per image, each one question.

    A change is kept if the margin of the best wrong class grows. In the L-infinity ball, the start
    is x + eps times vertical stripes of random signs, and a query sets a square to x + eps times
    one random sign per channel. In the L2 ball, the start is a grid of bumps; a query moves the
    mass of two squares into one, shaped by another pair of bumps (see `moved`).

    The squares cover the fraction p of the image: `p_init` at first, halved after 10, 50, 200, ...
    8000 of 10000 queries (in proportion, for another number). An image is done as soon as it is
    misclassified; one that is not broken comes back unchanged.
    """

    queries: int = 5000
    p_init: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(queries=self.queries)
        if not 0 < self.p_init <= 1:
            raise InputError(f"p_init must be in (0, 1], got {self.p_init:g}")

    def perturb(self, model: Model, batch: AttackBatch) -> Tensor:
        """One search, on the images that are classified right to begin with."""
        return on_survivors(model, batch, [partial(self._run, model)])

    def _run(self, model: Model, batch: AttackBatch) -> Tensor:
        images, labels, draws, bounds = batch
        channels, height, width = images.shape[1:]
        drawn = channels + (2 if self.norm == "Linf" else 5)
        result = images.clone()
        rows = torch.arange(len(images), device=images.device)
        best = self._start(images, bounds, draws.at(0))
        best_margin = margin(logits_of(model, best), labels)
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
            margins = margin(logits_of(model, tried), labels)
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


_BETAS, _SMALL = (0.9, 0.999), 1e-8  # Adam's own


@dataclass(frozen=True, kw_only=True, repr=False)
class SPSA(Attack):
    """Adam with an estimated gradient of the margin m, on a perturbation d from U(-eps, eps):

        g = mean over S samples of (m(x + d + delta v) - m(x + d - delta v)) / (2 delta) v,
        v_i = +1 or -1 with equal chances,   d <- clip(Adam(d, -g, lr)).

    Each step asks the model about 2 `samples` points per image, `chunk` points at a time whatever
    the size of the batch; the answer does not depend on `chunk`. With `early_stop` an image rests
    at the first step that breaks it.

    `compat="cleverhans"` takes the differences at 2 x instead of x + d, as cleverhans 4.0 does by
    adding the image twice (its issue 1249): the slope of the model somewhere else, which may say
    little about the image. Only to compare with the paper's Table 1.
    """

    eps: float = 0.1
    steps: int = 20
    samples: int = 128
    delta: float = 0.01
    lr: float = 0.01
    chunk: int = 256
    early_stop: bool = False
    compat: Literal["cleverhans"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._read_budgets("delta", "lr")
        check_budget("eps", self.eps)
        check_budget("delta", self.delta)
        check_counts(steps=self.steps, samples=self.samples)
        if not (self.delta > 0 and self.lr > 0):
            raise InputError(f"delta and lr must be above 0, got {self.delta:g} and {self.lr:g}")
        if self.chunk < 2:
            raise InputError(f"chunk must be at least 2, one pair of points, got {self.chunk}")
        if self.compat not in (None, "cleverhans"):
            raise InputError(f"compat must be None or 'cleverhans', got {shortened(self.compat)}")

    def perturb(self, model: Model, batch: AttackBatch) -> Tensor:
        """The last step's images, or the first that is misclassified."""
        images, labels, draws, bounds = batch
        result = torch.empty_like(images)
        rows = torch.arange(len(images), device=images.device)
        low = (images - self.eps).clamp(min=bounds.low)
        high = (images + self.eps).clamp(max=bounds.high)
        start = (2 * draws.at(0).uniform(*images.shape[1:]) - 1).to(images.dtype)
        attacked = torch.clamp(images + self.eps * start, low, high)
        mean, square = torch.zeros_like(images), torch.zeros_like(images)
        for step in range(1, self.steps + 1):
            if self.early_stop:
                alive = is_right(model, attacked, labels)
                result[rows[~alive]] = attacked[~alive]
                rows, labels, draws = rows[alive], labels[alive], draws.of(alive)
                images, attacked = images[alive], attacked[alive]
                low, high = low[alive], high[alive]
                mean, square = mean[alive], square[alive]
                if not len(rows):
                    break
            centre = 2 * images if self.compat else attacked
            gradient = self.estimate(model, centre, labels, draws.at(step))
            check_finite(gradient)
            mean = torch.lerp(mean, gradient, 1 - _BETAS[0])
            square = torch.lerp(square, gradient.square(), 1 - _BETAS[1])
            scale = (square / (1 - _BETAS[1] ** step)).sqrt() + _SMALL
            move = self.lr * mean / (1 - _BETAS[0] ** step) / scale
            attacked = torch.clamp(attacked + move, low, high)
        result[rows] = attacked
        return result

    def estimate(self, model: Model, centre: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        """The estimated gradient of the margin at `centre`, in its shape."""
        keys = draws.keys(self.samples)  # (B S, 2)
        image = torch.arange(len(centre), device=centre.device).repeat_interleave(self.samples)
        total = torch.zeros_like(centre)
        pairs = self.chunk // 2
        for key, index in zip(keys.split(pairs), image.split(pairs), strict=True):
            direction = random_signs(key, centre[0].numel()).to(centre.dtype)
            direction = direction.view(-1, *centre.shape[1:])
            here, step = centre[index], self.delta * direction
            logits = logits_of(model, torch.cat([here + step, here - step]))
            ahead, behind = margin(logits, labels[index].repeat(2)).chunk(2)
            slope = ((ahead - behind) / (2 * self.delta)).to(centre.dtype)
            total.index_add_(0, index, slope[:, None, None, None] * direction)
        return total / self.samples
