"""What twins share: runs that differ in their controller and seed, and in nothing that counts."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

MOVES_NOTHING = (
    "data.workers",
    "train.log_steps",
    "train.checkpoint_seconds",
    "train.checkpoint_steps",
    "train.compile",
    "text.cache",
)
"""Keys of a recipe that move no number beyond rounding."""


def twin_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe without its seed, its gains and how they come in, backbone, and what moves nothing.

    Twins start from twins, so each has a backbone of its own.
    """
    shared = {key: dict(v) if isinstance(v, Mapping) else v for key, v in recipe.items()}
    shared.pop("seed", None)
    for name in ("model.gains", "segmentation.backbone", *MOVES_NOTHING):
        section, _, key = name.partition(".")
        (shared.get(section) or {}).pop(key, None)
    if schedule := shared.get("schedule"):
        shared["schedule"] = {k: v for k, v in schedule.items() if not k.startswith("gain_ramp")}
    if segmentation := shared.get("segmentation"):
        decoder = {k: v for k, v in segmentation.get("decoder", {}).items() if k != "gains"}
        shared["segmentation"] = {**segmentation, "decoder": decoder}
    return shared


def recipe_hash(recipe: Mapping[str, Any]) -> str:
    """16 hex digits of what twins share; parts that are None count as not there."""
    shared = {key: value for key, value in twin_recipe(recipe).items() if value is not None}
    shared["model"] = {k: v for k, v in shared["model"].items() if k != "init" or v is not None}
    return _hash(shared)


def control_free_hash(recipe: Mapping[str, Any]) -> str:
    """16 hex digits of what a run shares with its softmax twin, whatever acts between its layers.

    As `twin_recipe`, and without where the weights come from, whether gains are learned, the
    integral's form, and the residual of values.
    """
    shared = twin_recipe(recipe)
    model = {
        k: v for k, v in (shared.get("model") or {}).items() if k not in ("learn_gains", "init")
    }
    options = dict(model.get("options") or {})
    for name in ("value_residual", "integral_leak", "integral_limit"):
        options.pop(name, None)
    shared["model"] = model | {"options": options}
    shared["schedule"] = dict(shared.get("schedule") or {})
    return _hash(shared)


def _hash(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]
