"""The keys of a recipe: names, types, defaults and explanations, read from its dataclasses."""

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

from pidformer.runs.recipe import Recipe, SegmentationRecipe, TextRecipe

_OPTIONAL = {"segmentation": SegmentationRecipe, "text": TextRecipe}


class Key(NamedTuple):
    """One key, as it is written in an override."""

    name: str
    kind: str
    default: Any
    text: str


def recipe_keys(kind: Any = Recipe, prefix: str = "") -> Iterator[Key]:
    """All keys of a recipe, section by section."""
    hints, texts = typing.get_type_hints(kind), _explanations(kind)
    for field in dataclasses.fields(kind):
        name, hint = f"{prefix}{field.name}", hints[field.name]
        section = _OPTIONAL.get(name, hint)
        if dataclasses.is_dataclass(section):
            yield from recipe_keys(section, f"{name}.")
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        yield Key(name, _words(hint), default, texts.get(field.name) or _PLAIN.get(name, ""))


def _explanations(kind: Any) -> dict[str, str]:
    """The string below each field, which Python itself does not keep."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            value = below.value if isinstance(below, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[field.target.id] = " ".join(value.value.split())
    return found


def _words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return ", ".join(map(str, arguments))
    if origin in (types.UnionType, typing.Union):
        return " or ".join("null" if a is type(None) else _words(a) for a in arguments)
    if origin is tuple:
        return f"list of {_words(arguments[0])}s"
    names = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    return names.get(origin or hint, "gains" if hint is Any else "keys and values")


_PLAIN = {
    "task": "What is learned.",
    "seed": "Random seed: data order, augmentation, weights, dropout.",
    "model.learn_gains": "Train the gains too, inside the stable region.",
    "model.first_layer": "Whether the first layer only sets the reference (free) or is controlled.",
    "model.attention_residual": "The residual connection around attention.",
    "data.image_size": "Pixels per side that the model sees; for segmentation, of a window.",
    "data.mean": "Mean of each channel, pixels in [0, 1]; three for colour.",
    "data.std": "Standard deviation of each channel.",
    "data.crop_ratio": "Share of the image that evaluation looks at, from its centre.",
    "data.workers": "Processes that read images; 0 reads in the training process.",
    "data.corrupt_limit": "Share of unreadable images at which training stops.",
    "text.min_count": "Words rarer than this become <unk>.",
    "text.max_words": "Largest vocabulary.",
    "optim.name": "Optimiser.",
    "optim.lr": "Peak learning rate.",
    "optim.betas": "Of AdamW.",
    "optim.eps": "Of AdamW.",
    "optim.momentum": "Of SGD.",
    "optim.weight_decay": "Not for biases, norms, positions and the class token.",
    "optim.clip": "Largest norm of the gradient.",
    "schedule.name": "Shape of the learning rate after the warm-up.",
    "schedule.epochs": "Length of the run.",
    "schedule.warmup_epochs": "Epochs over which the learning rate rises.",
    "schedule.warmup_lr": "Where it rises from.",
    "schedule.min_lr": "Where it ends.",
    "schedule.warmup_steps": "Warm-up of a run that is counted in steps.",
    "schedule.gain_ramp_by_layer": "One layer after the other.",
    "train.precision": "Of the forward and backward pass; weights stay float32.",
    "train.parallel": "Whole models on each GPU (ddp), or sharded ones (fsdp).",
    "train.grad_checkpointing": "Recompute activations: less memory, more time.",
    "train.checkpoint_seconds": "Seconds between checkpoints.",
    "train.log_steps": "Steps between lines of the log.",
    "train.on_nan": "What to do when the loss is no number.",
    "segmentation.decoder.name": "Mask transformer, or one linear layer.",
    "segmentation.decoder.layers": "Of the mask transformer.",
    "segmentation.decoder.dropout": "Of the mask transformer.",
}
"""What the dataclasses do not say beside their fields."""
