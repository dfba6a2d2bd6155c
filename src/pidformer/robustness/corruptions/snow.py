"""Snow: blurred flakes over a whitened image."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pidformer.robustness.corruptions.blur import directional_blur
from pidformer.robustness.corruptions.fields import RandomFields
from pidformer.robustness.corruptions.filters import resize_centre
from pidformer.robustness.corruptions.quantise import round_8_bit, to_8_bit

_LUMA = (0.299, 0.587, 0.114)


def snow(images: Tensor, constants: Mapping[str, float], draws: RandomFields) -> Tensor:
    """keep * x + (1 - keep) * max(x, 1.5 grey + 0.5), plus the flakes and the flakes turned round.

    Flakes are N(mean, std) enlarged by `zoom`, 0 below `threshold`, truncated to 8 bits and
    blurred at an angle in U(-135, -45) degrees (rounded to 8 bits, as an image is stored).
    """
    height, width = images.shape[-2:]
    layer = draws.normal("flakes", 1, height, width) * constants["std"] + constants["mean"]
    layer = resize_centre(layer, constants["zoom"])
    layer = to_8_bit(torch.where(layer < constants["threshold"], 0.0, layer))
    angle = draws.uniform("angle", 1)[:, 0] * 90 - 135
    layer = directional_blur(layer, angle, constants["radius"], constants["sigma"])
    layer = round_8_bit(layer)
    luma = images.new_tensor(_LUMA).view(1, 3, 1, 1)
    grey = (images * luma).sum(1, keepdim=True)
    keep = constants["keep"]
    pale = keep * images + (1 - keep) * torch.maximum(images, 1.5 * grey + 0.5)
    return pale + layer + layer.flip(2, 3)
