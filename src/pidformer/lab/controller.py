"""The attention and the tokens of the Controller view, for use from Python.

Tokens x_1 .. x_N are drawn once; attention compares them with each other,

    K = softmax(sharpness x x^T / 2),      row by row, over j <= i if it is causal,

and the layers move values v_0 by v_{l+1} = K v_l + control_l (`pidformer.control.simulate`). Such
a kernel has real eigenvalues in [0, 1]: it is similar to a positive semidefinite matrix, or
triangular. The page itself computes in the browser (control.js), with or without a server.
"""
# N tokens

import math

import torch
from torch import Tensor

from pidformer.lab.knobs import Knobs

FEATURES = 4
"""Coordinates that attention compares."""
VALUES = 6
"""Coordinates of the values that the layers move; pictures show the first two."""


def draws(seed: int, count: int) -> list[float]:
    """`count` normal numbers, as the exported page draws them too: mulberry32, Box and Muller."""
    state = (seed * 0x9E3779B1 + 0x6D2B79F5) & 0xFFFFFFFF

    def uniform() -> float:
        nonlocal state
        state = (state + 0x6D2B79F5) & 0xFFFFFFFF
        t = ((state ^ (state >> 15)) * (state | 1)) & 0xFFFFFFFF
        t ^= (t + (((t ^ (t >> 7)) * (t | 61)) & 0xFFFFFFFF)) & 0xFFFFFFFF
        return ((t ^ (t >> 14)) & 0xFFFFFFFF) / 2**32

    found = []
    for _ in range(count):
        radius = math.sqrt(-2 * math.log(1 - uniform()))
        found.append(radius * math.cos(2 * math.pi * uniform()))
    return found


def start(knobs: Knobs) -> tuple[Tensor, Tensor]:
    """What attention compares, (N, 4), and the first values, (N, 6)."""
    count = knobs.tokens * (FEATURES + VALUES)
    rows = torch.tensor(draws(knobs.seed, count), dtype=torch.float64).view(knobs.tokens, -1)
    return rows[:, :FEATURES], rows[:, FEATURES:]


def kernel_of(knobs: Knobs) -> Tensor:
    """The attention matrix, (N, N)."""
    features, _ = start(knobs)
    scores = knobs.sharpness * features @ features.T / 2
    if knobs.causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    return scores.softmax(-1)
