"""How an attack asks the model: for logits, for gradients, and in the end for the verdict."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from pidformer.devices import tf32
from pidformer.errors import InputError
from pidformer.models.pixel import logits_in
from pidformer.robustness.recording import current
from pidformer.robustness.threat import Model

# B images

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


def logits_of(model: Model, images: Tensor) -> Tensor:
    """The model's logits, in float32 at least."""
    logits = logits_in(model(images))
    if not isinstance(logits, Tensor):
        raise InputError(
            "the model must give logits (B, classes), or an output that holds them as .logits; got "
            f"{type(logits).__name__}: take them out of it, as in lambda x: model(x)[0]"
        )
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def is_right(model: Model, images: Tensor, labels: Tensor) -> Tensor:
    """Which images are classified right, (B,), whatever the precision of the search."""
    return logits_of(judge(model), images).argmax(-1) == labels


def confirm(model: Model, images: Tensor, labels: Tensor, alive: Tensor) -> Tensor:
    """`alive` (B,), after a second look at what a search in less than float32 took for broken."""
    if judge(model) is model or bool(alive.all()):
        return alive
    fallen = (~alive).nonzero()[:, 0]
    return alive.index_put((fallen,), is_right(model, images[fallen], labels[fallen]))


def ascent(
    model: Model, images: Tensor, loss: Callable[..., Tensor], *classes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, losses (B,) and the gradient of each image's own loss with respect to it.

    `loss` is one of `losses`, `classes` what it takes beside the logits.
    """
    recorder, plain = current.get() if images.is_cuda else None, judge(model)
    if recorder is None or not recorder.takes(plain):
        return _ascent(model, loss, images, *classes)
    precision = model.precision if isinstance(model, Searching) else "float32"
    work = partial(_ascent, model, loss)
    with torch.cuda.device(images.device):  # a graph records the current one
        return recorder.run(plain, precision, loss, work, images, *classes)  # type: ignore


def _ascent(
    model: Model, loss: Callable[..., Tensor], images: Tensor, *classes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    with torch.enable_grad(), lowered(model, images.device.type):
        images = images.detach().requires_grad_()
        logits = logits_of(model, images)
        losses = loss(logits, *classes)
        if not losses.requires_grad:
            raise InputError("the model's output has no gradient; does it detach or no_grad?")
        # A sum, not a mean: the gradient of an image does not know the size of its batch.
        (gradient,) = torch.autograd.grad(losses.sum(), images)
    if 0 in gradient.stride():  # one number for many pixels: attacks write into it
        gradient = gradient.contiguous()
    return logits.detach(), losses.detach(), gradient


def check_finite(gradient: Tensor) -> None:
    """Refuse NaN in a gradient: its sign is 0, so it would look like a model that resists."""
    if not bool(torch.stack(gradient.aminmax()).isfinite().all()):
        raise InputError("the gradient of the model's loss is not finite; check its logits")


def check_path(ranges: Sequence[Sequence[Tensor]]) -> None:
    """`check_finite` of a whole path, given the least and the largest entry of each gradient.

    Warns of a path without any slope: the model may round, or be too sure.
    """
    found = torch.stack([end for ends in ranges for end in ends]).cpu()  # no wait but this one
    check_finite(found)
    if not found.any():
        warnings.warn(
            "the gradient of the model's loss is 0 in every pixel, so the attack follows nothing "
            "and its accuracy is no robustness; try Square(), which needs no gradients, or "
            "APGD(loss='dlr')",
            stacklevel=4,
        )
