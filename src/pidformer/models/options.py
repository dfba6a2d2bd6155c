"""What a recipe may say of a model: a closed list, each entry with its type and range.

A recipe, a run folder and a published record may come from a stranger, and their `model.options`
end as keywords of timm's and our own constructors. So they are sizes, rates and switches, and
nothing else: what loads a file, fetches an address or names a class is refused before any
constructor sees it.
"""

import difflib
import math
import os
import re
from collections.abc import Mapping
from typing import Any

from pidformer.errors import InputError, check_known, shortened
from pidformer.fields import (
    POSITIVE,
    RATE,
    SCALE,
    SHARE,
    SWITCH,
    Kind,
    choice,
    count,
    each,
    number,
    optional,
)

WIDE_MARGIN = 4
"""How many times a machine's memory the weights of a model may be: swap and guesses are in it."""
INSIST = "PIDFORMER_ANY_SIZE"
"""The environment variable that builds a model of any size."""
TASKS = ("classification", "segmentation", "language")
CHOICES = {
    "norm_order": ("pre", "post"),
    "norm_type": ("rms", "layer"),
    "position_type": ("rope", "sinusoidal", "learned"),
    "position_order": ("ascending", "descending"),
    "mlp_type": ("swiglu", "gelu", "relu"),
}
"""The language model's options that name one of a few."""

_MIX = Kind("in [0, 1], 'learned' or null", lambda v: v in (None, "learned") or SHARE.takes(v))

VISION: dict[str, Kind] = {
    "patch_size": each(count(1024), 2),
    "embed_dim": count(16384),
    "depth": count(512),
    "num_heads": count(512),
    "mlp_ratio": number(64, "above 0 and at most 64", above=0),
    "reg_tokens": count(1024, low=0),
    **dict.fromkeys(("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate"), RATE),
    **dict.fromkeys(("attn_drop_rate", "drop_path_rate"), RATE),
    **dict.fromkeys(("qkv_bias", "qk_norm", "proj_bias", "pre_norm", "final_norm"), SWITCH),
    **dict.fromkeys(("scale_attn_norm", "scale_mlp_norm", "class_token"), SWITCH),
    **dict.fromkeys(("no_embed_class", "pool_include_prefix", "fix_init"), SWITCH),
    **dict.fromkeys(("dynamic_img_size", "dynamic_img_pad"), SWITCH),
    "fc_norm": optional(SWITCH),
    "init_values": optional(SCALE),
    "global_pool": choice("", "avg", "avgmax", "max", "token"),
    "pos_embed": choice("", "none", "learn"),
    **dict.fromkeys(("init_std", "value_init", "proj_init"), SCALE),
    "position_resize": choice("bicubic", "bilinear"),
    "integral_leak": SHARE,
    "integral_limit": optional(POSITIVE),
    "value_residual": _MIX,
}
"""Keywords of `PIDVisionTransformer`."""

TIMM: dict[str, Kind] = VISION | {
    **dict.fromkeys(("qkv_fused", "swiglu_mlp", "scale_mlp", "scale_attn_inner"), SWITCH),
    **dict.fromkeys(("use_abs_pos_emb", "use_rot_pos_emb", "rope_rotate_half"), SWITCH),
    **dict.fromkeys(("use_post_norm", "use_pre_transformer_norm"), SWITCH),
    **dict.fromkeys(("use_post_transformer_norm", "use_fc_norm"), optional(SWITCH)),
    "num_kv_heads": optional(count(512)),
    "num_reg_tokens": count(1024, low=0),
    "rope_temperature": number(1e6, "above 1 and at most 1e6", above=1),
    "head_init_scale": SCALE,
}
"""Keywords of timm:NAME: those above that timm has too, and those of `Eva`."""

LANGUAGE: dict[str, Kind] = {
    "hidden_size": count(65536),
    "num_hidden_layers": count(512),
    "num_attention_heads": count(512),
    "num_key_value_heads": optional(count(512)),
    "intermediate_size": optional(count(1_000_000)),
    "max_position_embeddings": count(10_000_000),
    "sliding_window": optional(count(10_000_000, low=0)),
    "cutoffs": optional(each(count(100_000_000), 64)),
    **{name: choice(*names) for name, names in CHOICES.items()},
    "norm_eps": number(1, "above 0 and at most 1", above=0),
    "rope_theta": number(1e12, "above 1 and at most 1e12", above=1),
    **dict.fromkeys(("attention_bias", "mlp_bias", "output_bias", "scale_embedding"), SWITCH),
    "use_cache": optional(SWITCH),
    "tie_word_embeddings": SWITCH,
    **dict.fromkeys(("hidden_dropout", "attention_dropout"), RATE),
    **dict.fromkeys(("initializer_range", "norm_initializer_range"), SCALE),
}
"""Keywords of `PIDformerConfig`."""

DECODER: dict[str, Kind] = {
    "name": choice("mask", "linear"),
    "layers": count(64),
    "dropout": RATE,
    "gains": Kind("gains", lambda v: True),  # read by `as_gains`, which refuses what it must
}
_SIZES = {
    "num_classes": count(10_000_000, low=0),
    "channels": count(1024),
    "image_size": count(65536),
}
_WORDS = {
    "vocab_size": count(100_000_000),
    "length": count(10_000_000),
    "eos_token_id": optional(count(100_000_000, low=0)),
}
_ELSEWHERE = ("name", "gains", "learn_gains", "first_layer", "attention_residual", "init")
"""Keys of the section itself."""
_NAME = re.compile(r"(timm:)?[\w.-]+")
_REACHING = re.compile(
    r"pretrained.*|.*cache.*|checkpoint.*|.*_(layer|fn|cls|path|dir|url|file|id|map|kwargs)"
    r"|features_only|hf_.*|weight_init|scriptable|exportable|device|dtype|auto_map|trust_.*|kernel.*"
)
"""Names of timm's and Hugging Face's keywords that load, fetch, or name a class."""


def check_model(fields: Any, task: str, where: str = "") -> None:
    """Refuse a `model` section that says more than what a model is; `where` begins the error."""
    check_known("task", task, TASKS)
    name = fields.get("name") if isinstance(fields, Mapping) else None
    if not isinstance(name, str):
        raise InputError(f"{where}model must be a section with a name, got {shortened(fields)}")
    if not _NAME.fullmatch(name):
        allowed = "a model of ours or timm:NAME"
        raise InputError(f"{where}model.name must be {allowed}, got {shortened(name)}")
    check_options(fields.get("options", {}), task, where, is_timm=name.startswith("timm:"))


def check_options(options: Any, task: str, where: str = "", *, is_timm: bool = False) -> None:
    """Refuse an option that is not of the closed list, or out of its range."""
    known = LANGUAGE if task == "language" else TIMM if is_timm else VISION
    check_fields(options, known, f"{where}model.options")


def check_memory(options: Mapping[str, Any], task: str) -> None:
    """Refuse options, checked already, of a model that is far larger than this machine's memory.

    Each of L layers of width C has at least 2 C^2 weights of attention and 2 C M of the MLP.
    """
    if task == "language":
        width = options.get("hidden_size", 256)
        depth = options.get("num_hidden_layers", 8)
        hidden, patch = options.get("intermediate_size") or 4 * width, 1
    else:
        width, depth = options.get("embed_dim", 192), options.get("depth", 12)
        hidden = options.get("mlp_ratio", 4) * width
        sides = options.get("patch_size", 1)
        patch = math.prod(sides) if isinstance(sides, list | tuple) else sides**2
    weights = depth * 2 * width * (width + hidden) + patch * width
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * weights > WIDE_MARGIN * memory and not os.environ.get(INSIST):
        raise InputError(
            f"these model.options are a model of at least {weights:.2g} weights, "
            f"{4e-9 * weights:,.0f} GB; this machine has {1e-9 * memory:,.0f} GB of memory: choose "
            f"smaller ones, or set {INSIST}=1 to build it all the same"
        )


def check_decoder(fields: Any, where: str = "") -> None:
    """As `check_options`, of a segmenter's `segmentation.decoder`."""
    check_fields(fields, DECODER, f"{where}segmentation.decoder")


def check_build(fields: Mapping[str, Any], where: str) -> None:
    """Refuse more, or other values, than a data set adds to a recipe: the section `build`."""
    check_fields(fields, _WORDS if "vocab_size" in fields else _SIZES, where)


def check_fields(fields: Any, known: Mapping[str, Kind], where: str) -> None:
    """One line for the first key that is not known, or whose value its kind does not take."""
    if not isinstance(fields, Mapping):
        raise InputError(f"{where} must be a section of keys, got {shortened(fields)}")
    for key, value in fields.items():
        if key not in known:
            raise _refused(str(key), known, where)
        if not known[key].takes(value):
            raise InputError(f"{where}.{key} must be {known[key].words}, got {shortened(value)}")


def _refused(key: str, known: Mapping[str, Kind], where: str) -> InputError:
    name = f"{where}.{key[:60]}"
    if where.endswith("options") and key in _ELSEWHERE:
        return InputError(f"{name} is no option; write model.{key}")
    if _REACHING.fullmatch(key) and key not in known:
        return InputError(
            f"{name} is refused: sizes, rates and switches may be said here, never what to load, "
            "fetch or run"
        )
    near = difflib.get_close_matches(key, known, n=1)
    page = "language" if known is LANGUAGE else "models"
    others = f"docs/{page}.md lists the options" if len(known) > 9 else f"known: {', '.join(known)}"
    hint = f"did you mean {near[0]!r}?" if near else others
    return InputError(f"{name} is not known; {hint}")
