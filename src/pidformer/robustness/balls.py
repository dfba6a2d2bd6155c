"""Balls, boxes and planes of the L-infinity and the L2 norm."""
# B images of D numbers

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pidformer.robustness.threat import Draws

Norm = Literal["Linf", "L2"]

TINY = 1e-30
"""Keeps 0 / 0 at 0, and is far below the gradients of a model that is sure: 1e-13 and less."""


class Bounds(NamedTuple):
    """Where the entries of an attacked image may lie."""

    low: float
    high: float


PIXELS = Bounds(0.0, 1.0)
UNBOUNDED = Bounds(-float("inf"), float("inf"))


def length(x: Tensor, norm: Norm) -> Tensor:
    """The norm of each image, (B, 1, 1, 1)."""
    order = float("inf") if norm == "Linf" else 2.0
    return torch.linalg.vector_norm(x, order, dim=(1, 2, 3), keepdim=True)


def steepest(gradient: Tensor, norm: Norm) -> Tensor:
    """The direction of length 1 in which the loss grows fastest."""
    return gradient.sign() if norm == "Linf" else gradient / (length(gradient, norm) + TINY)


def into_ball(x: Tensor, centre: Tensor, eps: float, norm: Norm, bounds: Bounds) -> Tensor:
    """The nearest point of the ball around `centre`, then of the box: it lies in both."""
    change = x - centre
    if norm == "Linf":
        change = change.clamp(-eps, eps)
    else:
        change = change * (eps / length(change, norm).clamp(min=max(eps, TINY)))
    return (centre + change).clamp(*bounds)


def random_start(images: Tensor, eps: float, norm: Norm, bounds: Bounds, draws: Draws) -> Tensor:
    """A random point on the edge of the ball, moved into the box."""
    shape = images.shape[1:]
    drawn = 2 * draws.uniform(*shape) - 1 if norm == "Linf" else draws.normal(*shape)
    drawn = drawn.to(images.dtype)
    return (images + eps * drawn / (length(drawn, norm) + TINY)).clamp(*bounds)


def onto_plane(x: Tensor, normal: Tensor, offset: Tensor, norm: Norm, bounds: Bounds) -> Tensor:
    """The shortest step d (B, D) with <normal, x + d> = offset that keeps x + d in the box.

    With s_i = 1 (L-infinity) or |w_i| (L2) and r_i the room of x_i towards the plane, the solution
    is |d_i| = min(t s_i, r_i) for the t at which sum_i |w_i| |d_i| reaches the distance c: a
    piecewise linear function of t with corners at r_i / s_i. A plane that does not cross the box is
    approached as far as the box allows.
    """
    gap = offset - (normal * x).sum(1)  # (B,)
    weight = normal.abs()
    direction = normal.sign() * gap.sign()[:, None]
    c = gap.abs()[:, None]
    slope = torch.ones_like(weight) if norm == "Linf" else weight
    reach = weight * slope
    room = torch.where(direction > 0, bounds.high - x, x - bounds.low)
    # Without bounds the whole way is t = c / sum reach: any room beyond it is as good as infinite.
    free = 2 * slope * c / (reach.sum(1, keepdim=True) + TINY) + 1
    room = torch.where(room.isinf(), free, room)
    corner = room / slope.clamp(min=TINY)
    corner, order = corner.sort(dim=1)
    spent = (weight * room).gather(1, order).cumsum(1)  # by the entries that have hit the box
    ordered = reach.gather(1, order)
    left = ordered.sum(1, keepdim=True) - ordered.cumsum(1)  # slope of those that have not
    covered = spent + left.clamp(min=0) * corner  # at each corner
    index = torch.searchsorted(covered.contiguous(), c).clamp(max=x.shape[1] - 1)
    before = spent.gather(1, index) - (weight * room).gather(1, order).gather(1, index)
    t = (c - before) / (left.gather(1, index).clamp(min=0) + ordered.gather(1, index) + TINY)
    is_far = c >= covered[:, -1:]
    size = torch.where(is_far, room, torch.minimum(t * slope, room))
    return direction * size
