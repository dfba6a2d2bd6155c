"""Fog: a plasma fractal added to the image."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from pidformer.robustness.corruptions.fields import RandomFields

_FIRST_WOBBLE = 100.0


def fog(images: Tensor, constants: Mapping[str, float], draws: RandomFields) -> Tensor:
    """(x + amount * plasma) * max / (max + amount), with the image's largest entry as max.

    The plasma's side is the power of two that covers the image.
    """
    height, width = images.shape[-2:]
    side = 1 << (max(height, width) - 1).bit_length()
    plasma = diamond_square(draws, side, constants["decay"])[:, None, :height, :width]
    largest = images.amax((1, 2, 3), keepdim=True)
    amount = constants["amount"]
    return (images + amount * plasma) * (largest / (largest + amount))


def diamond_square(draws: RandomFields, side: int, decay: float) -> Tensor:
    """Plasma fractals (B, side, side) on a torus, scaled to [0, 1].

    From the coarsest grid down, the centre of each square and then the middle of each edge become
    the mean of their four neighbours plus w^2 U(-1, 1); w starts at 100 and is divided by `decay`
    after each grid. (The published fractal multiplies by w twice.)
    """
    plasma: Tensor | None = None
    step, wobble = side, _FIRST_WOBBLE
    while step >= 2:
        half, count = step // 2, side // step
        noise = draws.uniform(f"grid {step}", 3, count, count).double() * 2 - 1
        noise *= wobble**2
        if plasma is None:
            plasma = noise.new_zeros(len(noise), side, side)
        corners = plasma[:, ::step, ::step]
        right = corners + corners.roll(-1, 2)  # the ends of each horizontal edge
        down = corners + corners.roll(-1, 1)
        centres = (right + right.roll(-1, 1)) / 4 + noise[:, 0]
        plasma[:, half::step, half::step] = centres
        plasma[:, ::step, half::step] = (centres + centres.roll(1, 1) + right) / 4 + noise[:, 1]
        plasma[:, half::step, ::step] = (centres + centres.roll(1, 2) + down) / 4 + noise[:, 2]
        step, wobble = half, wobble / decay
    assert plasma is not None, "a side is at least 2"
    plasma -= plasma.amin((1, 2), keepdim=True)
    return plasma / plasma.amax((1, 2), keepdim=True)
