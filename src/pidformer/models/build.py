"""Models from plain data: what a recipe says, and what the data set adds."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import timm
from timm.layers import LayerNorm

from pidformer.control.feedback import as_feedback
from pidformer.control.gains import PIDGains
from pidformer.errors import InputError, check_known, cut
from pidformer.models.gains import NO_WORDS, refuse_terms
from pidformer.models.options import check_decoder, check_memory, check_options
from pidformer.models.segmenter import NORM_EPS, LinearDecoder, MaskTransformer, Segmenter
from pidformer.models.vit import PIDVisionTransformer

SAME = "same"
"""A decoder's gains that are the encoder's."""
REFUSALS = (TypeError, AssertionError, ValueError, RuntimeError, ArithmeticError)
"""How timm and torch refuse a keyword or a size."""
CONTROLLER = ("gains", "learn_gains", "first_layer", "attention_residual")
"""What the `model` section of a recipe says of the controller."""


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
    check_decoder(fields)
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
    check_known("model", name, timm.list_models("pid_*"))
    controller = {key: config[key] for key in CONTROLLER if key in config}
    options = config.get("options", {})
    check_options(options, "classification")
    check_memory(options, "classification")
    try:
        model = timm.create_model(name, **size, **controller, **options)
    except InputError:
        raise
    except REFUSALS as error:
        raise InputError(f"model {name} takes no such model.options: {cut(error, 160)}") from None
    if 0 in model.patch_embed.grid_size:
        raise InputError(
            f"images of {size['img_size']} pixels hold no patch of {model.patch_embed.patch_size}; "
            "choose a larger data.image_size or a smaller model.options.patch_size"
        )
    return model


def _decoder_gains(given: Any, encoder: PIDVisionTransformer) -> PIDGains | None:
    if given is None:
        return None
    if given != SAME:
        found = as_feedback(given)
        refuse_terms([found], NO_WORDS)
        return found
    if isinstance(encoder.gains, tuple):
        raise InputError(
            "gains by layer do not say what the decoder takes; set segmentation.decoder.gains to "
            "P,I,D[,BETA], or to null for softmax attention"
        )
    return encoder.gains
