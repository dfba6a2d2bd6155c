"""A converted model in one file that does not pass for the plain one."""

import json
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from pidformer.convert.conversion import Conversion
from pidformer.convert.mark import MARK, marks
from pidformer.convert.timm import ControlledModel, convert_timm, revert_timm
from pidformer.errors import InputError
from pidformer.files import atomic_path

Model = TypeVar("Model", bound=nn.Module)
EARLIER_MARK = "pidformer.gains"
"""The key in files of version 0.2.0."""


def save(model: nn.Module, path: str | Path) -> None:
    """Write a converted timm model to a safetensors file: its weights, its controller and a mark.

    `restore` reads it. For timm's own `load_state_dict` the mark, which every state dict of the
    model has, is an unexpected key: the weights are not taken for those of a plain model.
    """
    if not isinstance(model, ControlledModel):
        raise InputError(
            f"pf.save writes converted timm models, got {type(model).__name__}; Hugging Face "
            "models have save_pretrained, plain ones a state_dict"
        )
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    facts = {"format": "pt", "pidformer": json.dumps(model.pidformer.conversion.to_dict())}
    with atomic_path(Path(path)) as temporary:
        save_file(tensors, temporary, metadata=facts)


def restore(model: Model, path: str | Path) -> Model:
    """Give a plain timm model the weights and the controller of a file that `save` wrote, in place.

    The model is made as it was before its conversion: `timm.create_model(name, ...)`.
    """
    conversion, tensors = _read(Path(path))
    convert_timm(model, lambda depth: conversion.fitting(depth, path))
    tensors |= marks(model.state_dict())  # those of the file are its metadata, in short
    shapes = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    given = {name: tuple(t.shape) for name, t in tensors.items()}
    if shapes != given:
        revert_timm(model)
        name = min(name for name, _ in shapes.items() ^ given.items())
        theirs, ours = given.get(name, "none"), shapes.get(name, "none")
        raise InputError(
            f"{path} does not fit {type(model).__name__}: {name} has shape {theirs} in the file, "
            f"{ours} in the model"
        )
    model.load_state_dict(tensors)
    return model


def _read(path: Path) -> tuple[Conversion, dict[str, Any]]:
    try:
        with safe_open(path, "pt") as held:
            facts = held.metadata() or {}
            tensors = {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is no readable safetensors file ({error})") from None
    if tensors.keys().isdisjoint((MARK, EARLIER_MARK)) or "pidformer" not in facts:
        raise InputError(
            f"{path} holds no controller; load it into a timm model, then pf.convert that"
        )
    tensors.pop(EARLIER_MARK, None)
    try:
        saved = json.loads(facts["pidformer"])
    except ValueError as error:
        raise InputError(f"the controller in {path} is damaged ({error})") from None
    return Conversion.from_dict(saved, str(path)), tensors
