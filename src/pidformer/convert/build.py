"""Classifiers from plain data: ours by their names, timm's as "timm:NAME" and then converted."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import timm
from torch import Tensor, nn

from pidformer.convert.convert import convert
from pidformer.errors import InputError
from pidformer.models.build import REFUSALS, build_classifier
from pidformer.models.options import check_options

PREFIX = "timm:"
HEADS = ("head.", "head_dist.")


def build_image_model(
    config: Mapping[str, Any], *, num_classes: int, channels: int, image_size: int
) -> Any:
    """The classifier of a recipe's `model` section for images of this size.

    A `timm:NAME` is timm's own model with fresh weights, converted if there are gains.
    """
    name = config["name"]
    if not name.startswith(PREFIX):
        return build_classifier(
            config, num_classes=num_classes, channels=channels, image_size=image_size
        )
    if not config.get("attention_residual", True):
        raise InputError(
            f"{name} keeps its residuals; attention_residual=false is for pid_* models"
        )
    sizes = {"num_classes": num_classes, "in_chans": channels, "img_size": image_size}
    options = config.get("options", {})
    check_options(options, "classification", is_timm=True)
    model = timm_model(name.removeprefix(PREFIX), **sizes, **options)
    gains = config.get("gains")
    if gains is None:
        model.gains = None  # as our own models say that there is no controller
        if hasattr(model, "blocks"):
            model._no_split_modules = (type(model.blocks[0]).__name__,)  # for sharding
        return model
    return convert(
        model,
        gains,
        first_layer=config.get("first_layer", "free"),
        learn_gains=config.get("learn_gains", False),
        inplace=True,
    )


def timm_model(name: str, **options: Any) -> Any:
    """A model of timm by name, without weights; what timm refuses becomes one line."""
    if not timm.is_model(name):
        near = timm.list_models(f"*{name.split('.')[0]}*")[:3]
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise InputError(f"timm has no model {name!r}{hint}")
    try:
        return timm.create_model(name, pretrained=False, **options)
    except REFUSALS as error:
        raise InputError(f"timm model {name} with {options}: {error}") from None


def start_from(model: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """Put `weights` into a model to train it further.

    A classification head for other classes stays fresh, with a warning; learned gains are taken
    where both have them. Whatever else does not fit is refused.
    """
    own = model.state_dict()
    given = {key: value for key, value in weights.items() if key in own or not _is_gain(key)}
    other = [k for k in given if k in own and given[k].shape != own[k].shape]
    if other and all(key.startswith(HEADS) for key in other):
        classes, wanted = len(given[other[0]]), len(own[other[0]])
        warnings.warn(
            f"{name} knows {classes} classes, the data have {wanted}: the head starts anew",
            stacklevel=2,
        )
        given = {key: value for key, value in given.items() if key not in other}
    wrong = [k for k in given if k not in own or given[k].shape != own[k].shape]
    missing = [k for k in own if k not in given and not _is_gain(k) and k not in other]
    if wrong or missing:
        what = f"has {wrong[0]}" if wrong else f"lacks {missing[0]}"
        if wrong and wrong[0] in own:
            key = wrong[0]
            what += f" {tuple(given[key].shape)} instead of {tuple(own[key].shape)}"
        raise InputError(
            f"model.init={name} does not fit the recipe's model ({what}); give the model.name and "
            "model.options that it was made with"
        )
    model.load_state_dict(given, strict=False)


def _is_gain(key: str) -> bool:
    """Whether a key belongs to learned gains, of images or language."""
    return "attn.gains." in key
