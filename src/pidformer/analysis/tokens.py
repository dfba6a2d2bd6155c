"""The tokens of a model at each depth."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pidformer.errors import InputError
from pidformer.models import PIDVisionTransformer, PixelModel
from pidformer.nn import evaluating, scan_blocks


def visit_tokens(model: nn.Module, images: Tensor, visit: Callable[[int, Tensor], None]) -> None:
    """Call `visit(depth, tokens)` with the tokens (B, N, C) at each depth, in fp32.

    Depth 0 is the embedding, depth l the output of block l: the residual stream, before the next
    or the last normalisation, all tokens. Evaluation mode, no gradients, no autocast. `images` are
    what `model` takes: pixels in [0, 1] for a `PixelModel`.
    """
    if images.ndim != 4 or not len(images):
        raise InputError(f"images must be (B, channels, height, width), got {tuple(images.shape)}")
    with (
        evaluating(model),
        torch.no_grad(),
        torch.autocast(images.device.type, enabled=False),
    ):
        if isinstance(model, PixelModel):
            images, model = model.normalise(images), model.model
        if not isinstance(model, PIDVisionTransformer):
            raise InputError(
                "tokens are read from a PIDVisionTransformer or a PixelModel of one, got "
                f"{type(model).__name__}"
            )
        tokens = model.embed(images)
        visit(0, tokens.float())
        scan_blocks(
            model.blocks,
            tokens,
            observe=lambda depth, x, _: visit(depth + 1, x.float()),
        )
