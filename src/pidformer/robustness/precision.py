"""A faster search: logits and gradients in less than float32, the verdict in float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from pidformer.devices import tf32
from pidformer.errors import InputError, shortened
from pidformer.robustness.threat import Model

Precision = Literal["float32", "tf32", "bfloat16"]
"""What an attack searches in.

float32 is the model as it is: in whatever its weights, or the caller's autocast, say. tf32 lets
matrix products of a CUDA device round their factors to 10 bits, and changes nothing elsewhere.
bfloat16 is autocast. The images stay in their own dtype, and whether one is broken is always asked
of the model as it is.
"""


@dataclass(frozen=True)
class Searching:
    """A model that answers in less than float32."""

    model: Model
    precision: Precision

    def __call__(self, images: Tensor) -> Tensor:
        with lowered(self, images.device.type):
            return self.model(images)


def searching(model: Model, precision: Precision) -> Model:
    """The model for the search; with float32, the model itself."""
    return model if precision == "float32" else Searching(model, precision)


def judge(model: Model) -> Model:
    """The model for the verdict."""
    return model.model if isinstance(model, Searching) else model


def lowered(model: Model, device_type: str) -> AbstractContextManager[object]:
    """Where forward and backward of this model run: the backward of tf32 needs it too."""
    if not isinstance(model, Searching):
        return nullcontext()
    if model.precision == "bfloat16":
        return torch.autocast(device_type, torch.bfloat16)
    return tf32() if device_type == "cuda" else nullcontext()


def check_precision(precision: str) -> None:
    """Refuse an unknown precision."""
    if precision not in get_args(Precision):
        names = ", ".join(get_args(Precision))
        raise InputError(f"precision must be one of {names}; got {shortened(precision)}")
