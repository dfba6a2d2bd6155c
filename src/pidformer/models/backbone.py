"""Weights of a classifier put into an encoder: one of ours, timm's or DeiT's."""

import math
from collections.abc import Mapping

from torch import Tensor

from pidformer.errors import InputError, some
from pidformer.models.gains import is_gain
from pidformer.models.patches import resize_positions
from pidformer.models.vit import PIDVisionTransformer

LEFT_OUT = ("head.", "head_dist.", "fc_norm.", "pidformer.")
"""What a classifier has and an encoder has not; the last is the mark of a converted model."""
SHOWN = 3


def load_backbone(encoder: PIDVisionTransformer, weights: Mapping[str, Tensor], name: str) -> None:
    """Put the `weights` of a classifier (a state dict with timm's keys) into `encoder`.

    Positions are resized, bilinear, to the encoder's grid; the classification head is left out;
    learned gains are taken where both have them. Whatever else does not fit is refused, in one
    line that says `name`.
    """
    own = encoder.state_dict()
    given = {
        key: value
        for key, value in weights.items()
        if not key.startswith(LEFT_OUT) and not (is_gain(key) and key not in own)
    }
    _check_width(encoder, given, name)
    if "pos_embed" in given:
        given["pos_embed"] = _fitted_positions(encoder, given["pos_embed"], name)
    if fault := misfit(own, given):
        raise InputError(
            f"backbone {name} does not fit this encoder of depth {len(encoder.blocks)} and "
            f"patch size {encoder.patch_embed.patch_size[0]}: it {fault}"
        )
    encoder.load_state_dict(given, strict=False)


def misfit(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """What keeps weights from a model with its `own`, learned gains aside; nothing if they fit."""
    missing = [key for key in own if key not in given and not is_gain(key)]
    extra = [key for key in given if key not in own]
    wrong = [
        f"{key} {tuple(given[key].shape)} instead of {tuple(own[key].shape)}"
        for key in own
        if key in given and given[key].shape != own[key].shape
    ]
    for words, keys in (("lacks", missing), ("has unknown", extra), ("has", wrong)):
        if keys:
            return f"{words} {some(keys, SHOWN)}"
    return ""


def _check_width(encoder: PIDVisionTransformer, weights: Mapping[str, Tensor], name: str) -> None:
    if "patch_embed.proj.weight" not in weights:
        raise InputError(
            f"backbone {name} is no vision transformer of timm: it has no patch_embed.proj.weight, "
            f"only {some(list(weights), SHOWN) if weights else 'nothing'}"
        )
    width = len(weights["patch_embed.proj.weight"])
    if width != encoder.embed_dim:
        raise InputError(
            f"backbone {name} is {width} wide, this encoder {encoder.embed_dim}; choose the model "
            "or model.options.embed_dim that it was trained with"
        )


def _fitted_positions(encoder: PIDVisionTransformer, positions: Tensor, name: str) -> Tensor:
    prefix = 0 if encoder.no_embed_class else encoder.num_prefix_tokens
    patches = positions.shape[1] - prefix
    side = math.isqrt(max(patches, 0))
    if side * side != patches or not side:
        raise InputError(
            f"backbone {name} has {positions.shape[1]} positions, which are not {prefix} prefix "
            "token(s) and a square of patches"
        )
    return resize_positions(positions, (side, side), encoder.patch_embed.grid_size, prefix)
