"""The moves of the Square attack in the L2 ball: pyramids of mass, moved between windows."""
# B images (C, H, W)

from functools import cache

import torch
from torch import Tensor

from pidformer.robustness.draws import Draws
from pidformer.robustness.geometry import length

_TINY = 1e-12


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
    turned = torch.where(
        numbers[..., :1, None] > 0.5, upright.T, upright
    )  # (B, down, across, s, s)
    signs = (2 * (numbers[..., 1:] > 0.5) - 1).to(images.dtype)
    tiles = signs[..., None, None] * turned[:, :, :, None]  # (B, down, across, C, s, s)
    change = torch.zeros_like(images)
    top, left = (height - down * side) // 2, (width - across * side) // 2
    inside = change[:, :, top : top + down * side, left : left + across * side]
    inside.copy_(tiles.permute(0, 3, 1, 4, 2, 5).reshape_as(inside))
    return change / (length(change, "L2") + _TINY)


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
    signs = (2 * (numbers[:, 5:] > 0.5) - 1).to(change.dtype)[:, :, None, None]

    unused = (eps**2 - change.square().sum((1, 2, 3), keepdim=True)).clamp(min=0)
    held = (change * (first | second)).square().sum((2, 3), keepdim=True)  # (B, C, 1, 1)
    old = change * first
    new = (old / (_norm(old) + _TINY) + signs * bumps) * first
    new = new / (_norm(new) + _TINY) * (held + unused / channels).sqrt()
    change = torch.where(first, new, change * ~second)
    return eps * change / (length(change, "L2") + _TINY)


def window(uniform: Tensor, side: int, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """A window at one random place an image, (B, 1, H, W) bool; rows (B, H) and columns in it."""
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
