"""Models from plain data: what a recipe says, and what the data set adds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import timm
from timm.layers import LayerNorm

from pidformer.control.gains import PIDGains
from pidformer.errors import InputError, unknown
from pidformer.models.gains import as_gains
from pidformer.models.mask_transformer import LinearDecoder, MaskTransformer
from pidformer.models.segmenter import NORM_EPS, Segmenter
from pidformer.models.vit import PIDVisionTransformer

DECODERS = ("mask", "linear")
SAME = "same"
"""A decoder's gains that are the encoder's."""
REFUSALS = (TypeError, AssertionError, ValueError, RuntimeError, ArithmeticError)
"""How timm and torch refuse a keyword or a size."""
_COUNTS = ("patch_size", "embed_dim", "depth", "num_heads")


def build_classifier(
    config: Mapping[str, Any], *, num_classes: int, channels: int, image_size: int
) -> PIDVisionTransformer:
    """The classifier of a recipe's `model` section for images of this size."""
    return _create(config, num_classes=num_classes, in_chans=channels, img_size=image_size)


def build_segmenter(
    config: Mapping[str, Any],
    decoder: Mapping[str, Any] | None = None,
    *,
    num_classes: int,
    channels: int = 3,
    image_size: int,
) -> Segmenter:
    """The segmenter of a recipe's `model` section, with its `segmentation.decoder`.

    The encoder has no classification head. Its positions are for `image_size` and are resized,
    bilinear, for any other. `decoder` is {name: "mask" | "linear", layers, dropout, gains}, where
    gains "same" (the default) are the encoder's.
    """
    encoder = _create(
        config,
        num_classes=0,
        in_chans=channels,
        img_size=image_size,
        dynamic_img_size=True,
        position_resize="bilinear",
        norm_layer=partial(LayerNorm, eps=NORM_EPS),
    )
    fields: dict[str, Any] = {"name": "mask", "layers": 2, "dropout": 0.1, "gains": SAME}
    fields |= decoder or {}
    if fields["name"] not in DECODERS:
        raise unknown("decoder", fields["name"], DECODERS)
    if fields["name"] == "linear":
        return Segmenter(encoder, LinearDecoder(encoder.embed_dim, num_classes))
    gains = _decoder_gains(fields["gains"], encoder)
    heads = encoder.blocks[0].attn.num_heads
    return Segmenter(
        encoder,
        MaskTransformer(
            encoder.embed_dim,
            num_classes,
            heads,
            gains,
            depth=fields["layers"],
            dropout=fields["dropout"],
            learn_gains=config.get("learn_gains", False),
            first_layer=config.get("first_layer", "free"),
        ),
    )


def _create(config: Mapping[str, Any], **size: Any) -> PIDVisionTransformer:
    name = config["name"]
    if name not in timm.list_models("pid_*"):
        raise unknown("model", name, timm.list_models("pid_*"))
    controller = {
        key: config[key]
        for key in ("gains", "learn_gains", "first_layer", "attention_residual")
        if key in config
    }
    options = config.get("options", {})
    check_options(options)
    try:
        model = timm.create_model(name, **size, **controller, **options)
    except InputError:
        raise
    except REFUSALS as error:
        raise InputError(f"model {name} with options {options}: {error}") from None
    if 0 in model.patch_embed.grid_size:
        raise InputError(
            f"images of {size['img_size']} pixels hold no patch of {model.patch_embed.patch_size}; "
            "choose a larger data.image_size or a smaller model.options.patch_size"
        )
    return model


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse sizes and rates that timm takes and that fail, or teach nothing, later."""
    for key, value in options.items():
        if key in _COUNTS:
            parts = value if isinstance(value, (list, tuple)) else [value]
            if not all(type(part) is int and part >= 1 for part in parts):
                raise InputError(f"model.options.{key} must be a whole number >= 1, got {value!r}")
        elif key.endswith("_rate") and not _is_number(value, below=1):
            raise InputError(f"model.options.{key} must be in [0, 1), got {value!r}")
        elif key == "mlp_ratio" and not (_is_number(value, below=math.inf) and value > 0):
            raise InputError(f"model.options.mlp_ratio must be above 0, got {value!r}")


def _is_number(value: Any, *, below: float) -> bool:
    """Whether it is a number from 0 to `below`; NaN is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < below


def _decoder_gains(given: Any, encoder: PIDVisionTransformer) -> PIDGains | None:
    if given is None:
        return None
    if given != SAME:
        return as_gains(given)
    if isinstance(encoder.gains, tuple):
        raise InputError(
            "gains by layer do not say what the decoder takes; set segmentation.decoder.gains to "
            "P,I,D[,BETA], or to null for softmax attention"
        )
    return encoder.gains
