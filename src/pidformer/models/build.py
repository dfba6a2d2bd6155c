"""Models from plain data: what a recipe says, and what the data set adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import timm

from pidformer.errors import InputError, unknown
from pidformer.models.vit import PIDVisionTransformer


def build_classifier(
    config: Mapping[str, Any], *, num_classes: int, channels: int, image_size: int
) -> PIDVisionTransformer:
    """The classifier of a recipe's `model` section for images of this size."""
    name = config["name"]
    if name not in timm.list_models("pid_*"):
        raise unknown("model", name, timm.list_models("pid_*"))
    controller = {
        key: config[key]
        for key in ("gains", "learn_gains", "first_layer", "attention_residual")
        if key in config
    }
    try:
        return timm.create_model(
            name,
            num_classes=num_classes,
            in_chans=channels,
            img_size=image_size,
            **controller,
            **config.get("options", {}),
        )
    except (TypeError, AssertionError) as error:  # how timm refuses a keyword or a size
        raise InputError(f"model {name} with options {config.get('options')}: {error}") from None
