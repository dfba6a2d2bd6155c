"""`convert` and `revert`: a controller for the models people already have."""

import copy
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from torch import nn

from pidformer.control.pid import FirstLayer
from pidformer.convert.conversion import Conversion
from pidformer.convert.timm import MODELS, ControlledModel, convert_timm, is_timm, revert_timm
from pidformer.errors import InputError
from pidformer.models.gains import GainsLike
from pidformer.models.vit import PIDVisionTransformer

Model = TypeVar("Model", bound=nn.Module)


def convert(
    model: Model,
    gains: GainsLike | Sequence[GainsLike],
    *,
    layers: Iterable[int] | None = None,
    first_layer: FirstLayer = "free",
    learn_gains: bool = False,
    inplace: bool = False,
) -> Model:
    """The model with a controller in its attention: same weights under the same names.

    For timm's vision transformers and for Hugging Face models that attend through its attention
    interface. `gains` are for all layers (`PIDGains`, "P,I,D,BETA", a preset, a mapping) or a
    sequence with one for each; zero gains change nothing. `layers` are those that are controlled,
    all by default. `learn_gains` adds parameters, per layer and head, inside the region of
    stability. A copy is converted unless `inplace`. A converted model is given other gains by
    converting it again. A state dict of a timm model then has one key more, which says so.

    Loops over depth must be the model's own: checkpointing is non-reentrant only.
    """
    conversion_for = partial(
        Conversion.of, gains, layers=layers, first_layer=first_layer, learn_gains=learn_gains
    )
    work = _way_in(model)
    if not inplace:
        model = copy.deepcopy(model)
    work(model, conversion_for)
    return model


def revert(model: Model) -> Model:
    """Take the controller out again, in place: the model as it was, with its weights as they are.

    Learned gains are lost.
    """
    if isinstance(model, ControlledModel):
        revert_timm(model)
    elif hasattr(model, "_pid_before"):
        from pidformer.convert.hugging_face import revert_hugging_face

        revert_hugging_face(model)
    else:
        raise InputError(f"{type(model).__name__} was not converted; there is nothing to revert")
    return model


def _way_in(model: nn.Module) -> Any:
    if isinstance(model, PIDVisionTransformer) or type(model).__name__.startswith("PIDformer"):
        raise InputError(
            f"{type(model).__name__} has a controller of its own; build or load it with gains=..."
        )
    if is_timm(model):
        return convert_timm
    # told without importing transformers, which is an extra
    if any(kind.__module__ == "transformers.modeling_utils" for kind in type(model).__mro__):
        from pidformer.convert.hugging_face import convert_hugging_face

        return convert_hugging_face
    inner = getattr(model, "model", None)
    hint = f"; convert the {type(inner).__name__} inside it" if isinstance(inner, nn.Module) else ""
    raise InputError(
        f"{type(model).__name__} cannot be converted: supported are timm's "
        f"{', '.join(kind.__name__ for kind in MODELS)}, and models of transformers{hint}"
    )
