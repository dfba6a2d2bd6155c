"""How a foreign model is looked into: in evaluation mode, without gradients, eagerly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pidformer.errors import InputError
from pidformer.models import PixelModel
from pidformer.nn import evaluating

Model = nn.Module | Callable[..., Any]
"""Something that is called with a batch."""


def inner_model(model: Model) -> Any:
    """The model inside a `PixelModel` or a compiled one."""
    model = getattr(model, "_orig_mod", model)
    return inner_model(model.model) if isinstance(model, PixelModel) else model


def is_hugging_face(model: Model) -> bool:
    """Whether `model` knows `output_hidden_states`, as the models of transformers do."""
    return hasattr(getattr(inner_model(model), "config", None), "output_hidden_states")


@contextmanager
def looking(model: Model, inputs: Tensor) -> Iterator[None]:
    """Evaluation mode, no gradients, no autocast, no compiled code that would hide the inside."""
    with (
        evaluating(model),
        torch.no_grad(),
        torch.autocast(inputs.device.type, enabled=False),
        torch.compiler.set_stance("force_eager"),
    ):
        yield


def call(model: Model, inputs: Tensor, **options: Any) -> Any:
    """`model(inputs)`; what it asserts about its input becomes one line."""
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, PixelModel):
        return call(model.model, model.normalise(inputs), **options)
    if getattr(getattr(model, "config", None), "position_order", None) == "descending":
        options.setdefault("attention_mask", torch.ones_like(inputs))  # rows are whole: none padded
    try:
        return model(inputs, **options)
    except AssertionError as error:  # how timm and others refuse a size
        shape = tuple(inputs.shape)
        raise InputError(f"{type(model).__name__} refuses a batch {shape}: {error}") from None


def check_inputs(model: Model, inputs: Tensor, batch_size: int = 1) -> None:
    """Refuse an empty batch, and images that do not fit a vision transformer."""
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    inner = inner_model(model)
    embed = getattr(inner, "patch_embed", None)
    if not isinstance(inputs, Tensor) or inputs.ndim == 0 or not len(inputs):
        raise InputError("images must be a tensor of at least one, got none")
    if embed is None:
        return
    if inputs.ndim != 4:
        raise InputError(f"images must be (B, channels, height, width), got {tuple(inputs.shape)}")
    channels = getattr(getattr(embed, "proj", None), "in_channels", inputs.shape[1])
    size = getattr(embed, "img_size", None)
    if size is None or not getattr(embed, "strict_img_size", True):
        size = inputs.shape[-2:]
    expected = (channels, *size)
    if tuple(inputs.shape[1:]) != expected:
        raise InputError(
            f"images must be (B, {', '.join(map(str, expected))}) for this model, got "
            f"{tuple(inputs.shape)}; sample_images prepares them"
        )
