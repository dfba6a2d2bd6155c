"""DeiT with a controller, under timm's registry: `timm.create_model("pid_deit_...", gains=...)`."""

from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import (
    build_model_with_cfg,
    generate_default_cfgs,
    register_model,
    resolve_pretrained_cfg,
)
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import nn

from pidformer.errors import InputError
from pidformer.models.vit import PIDVisionTransformer

# DeiT's own evaluation resizes to 256 and crops 224; timm's entries use 0.9.
_CFG = {
    "url": "",
    "num_classes": 1000,
    "input_size": (3, 224, 224),
    "pool_size": None,
    "crop_pct": 0.875,
    "interpolation": "bicubic",
    "fixed_input_size": True,
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
    "first_conv": "patch_embed.proj",
    "classifier": "head",
}

default_cfgs = generate_default_cfgs(
    {f"pid_deit_{size}_patch16_224": _CFG for size in ("tiny", "small", "base")}
)


def _create(variant: str, pretrained: bool, size: dict[str, int], options: dict[str, Any]) -> Any:
    """A `PIDVisionTransformer`, or timm's feature wrapper around one."""
    cfg = resolve_pretrained_cfg(
        variant,
        pretrained_cfg=options.get("pretrained_cfg"),
        pretrained_cfg_overlay=options.get("pretrained_cfg_overlay"),
    )
    if pretrained and not (cfg.has_weights or cfg.state_dict):
        raise InputError(
            f"{variant} has no pretrained weights; use pretrained=False and give a DeiT "
            "checkpoint with checkpoint_path="
        )
    return build_model_with_cfg(
        PIDVisionTransformer,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"out_indices": options.pop("out_indices", 3), "feature_cls": "getter"},
        **{"patch_size": 16, "depth": 12, **size, **options},
    )


@register_model
def pid_deit_tiny_patch16_224(pretrained: bool = False, **options: Any) -> nn.Module:
    """DeiT-tiny (5.7 million parameters) with a controller."""
    size = {"embed_dim": 192, "num_heads": 3}
    return _create("pid_deit_tiny_patch16_224", pretrained, size, options)


@register_model
def pid_deit_small_patch16_224(pretrained: bool = False, **options: Any) -> nn.Module:
    """DeiT-small (22 million parameters) with a controller."""
    size = {"embed_dim": 384, "num_heads": 6}
    return _create("pid_deit_small_patch16_224", pretrained, size, options)


@register_model
def pid_deit_base_patch16_224(pretrained: bool = False, **options: Any) -> nn.Module:
    """DeiT-base (87 million parameters) with a controller."""
    size = {"embed_dim": 768, "num_heads": 12}
    return _create("pid_deit_base_patch16_224", pretrained, size, options)
