"""How much of a change of the input reaches the last values: measured, not derived."""
# B images, R directions, N tokens

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pidformer.analysis.inspection import AttentionCall, Model, visit_attention
from pidformer.data.arguments import check_counts
from pidformer.errors import InputError

STEP = 1e-4


class Response(NamedTuple):
    """Derivative of the values along random unit directions of the input, (R, B) each."""

    input_gain: Tensor
    """|dv_last|_2 / |dx|_2, x as the model takes it."""
    value_gain: Tensor
    """max |dv_last| / max |dv_first|: comparable with `Growth.values` of the recursion."""


def input_response(model: Model, images: Tensor, *, directions: int = 4, seed: int = 0) -> Response:
    """Central differences of step 1e-4 in float64, on a copy of the model.

    Random directions are typical ones; an adversary finds larger gains.
    """
    if not isinstance(model, nn.Module) or not images.is_floating_point():
        raise InputError("the response needs a torch module that takes floating-point images")
    check_counts(directions=directions)
    exact = copy.deepcopy(model).double()
    generator = torch.Generator().manual_seed(seed)
    images = images.double()
    found = []
    for _ in range(directions):
        way = torch.randn(images.shape, generator=generator, dtype=torch.float64).to(images.device)
        way = way / _length(way).view(-1, *[1] * (images.ndim - 1))
        above, below = (_ends(exact, images + sign * STEP * way) for sign in (1, -1))
        first, last = ((a - b) / (2 * STEP) for a, b in zip(above, below, strict=True))
        found.append((_length(last), _peak(last) / _peak(first)))
    inputs, values = zip(*found, strict=True)
    return Response(torch.stack(inputs), torch.stack(values))


def _ends(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Values of the first and of the last layer, (B, H, N, D)."""
    kept: list[Tensor | None] = []

    def visit(found: AttentionCall) -> None:
        kept[1:] = [found.value]

    visit_attention(model, images, visit)
    first, last = kept[0], kept[-1]
    if first is None or last is None:
        raise InputError(
            "values are read from scaled_dot_product_attention, which this model does not call"
        )
    return first.double(), last.double()


def _length(batch: Tensor) -> Tensor:
    return batch.flatten(1).norm(dim=1)


def _peak(batch: Tensor) -> Tensor:
    return batch.flatten(1).abs().amax(1)
