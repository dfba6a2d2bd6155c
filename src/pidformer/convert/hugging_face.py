"""Hugging Face models with a controller, through its attention interface.

The model keeps its class, its weights and its loop. Its attention is told to call ours
(`convert.interface`), and each forward pass of its backbone gets a fresh `Tape` among the keyword
arguments, which every layer hands to attention.
"""

import inspect
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from pidformer.convert.conversion import Conversion, remove, shown_gains
from pidformer.convert.families import FAMILIES, REFUSED, check_family
from pidformer.convert.interface import KEYWORD, NAME, Tape, watch_cache
from pidformer.convert.own_attention import ASKED, add_control, is_own, watch_values
from pidformer.errors import InputError
from pidformer.models.language.build import read_pretrained
from pidformer.models.language.folder import read_config

PLAIN = ("sdpa", "eager")
"""The ways to attend that a controller can join."""


def convert_hugging_face(model: Any, conversion_for: Any) -> None:
    """Convert in place; refused before anything is touched, or done as a whole."""
    is_again = hasattr(model, "_pid_before")
    attention = _controlled(model) if is_again else _attention(model)
    conversion: Conversion = conversion_for(len(attention))
    backbone = _backbone(model, attention)
    controllers = conversion.controllers(attention, _value_heads(model.config))
    if is_again:
        revert_hugging_face(model)
    conversion.put(attention, controllers)
    for layer, module in enumerate(attention):
        module.pid_layer = layer
        module.extra_repr = partial(shown_gains, module)
        watch = watch_values if is_own(module) else watch_cache
        module.register_forward_pre_hook(watch, with_kwargs=True)
    backbone.register_forward_pre_hook(_begin, with_kwargs=True)
    model._pid_before = model.config._attn_implementation
    for config in _configs(model):
        if not is_own(attention[0]):
            config._attn_implementation = NAME
        # Saved as it stands. transformers, told to attend in a way it does not know, stops.
        config.attn_implementation = NAME
        config.pidformer = conversion.to_dict() | {"attention": model._pid_before}


def revert_hugging_face(model: Any) -> None:
    """The model as it was before."""
    attention = _controlled(model)
    for module in model.modules():
        for number, hook in list(module._forward_pre_hooks.items()):
            if hook in (_begin, watch_cache, watch_values, add_control):
                del module._forward_pre_hooks[number]
                module._forward_pre_hooks_with_kwargs.pop(number, None)
    remove(attention)
    for module in attention:
        del module.pid_layer, module.extra_repr
    for config in _configs(model):
        config._attn_implementation = model._pid_before
        del config.pidformer, config.attn_implementation
    del model._pid_before


def from_pretrained(folder: str | Path, **options: Any) -> Any:
    """A converted model as `save_pretrained` wrote it, with its controller, in evaluation mode.

    `options` are those of `from_pretrained` of the model's class; the class is the one it had.
    """
    config = _config(folder)
    saved = getattr(config, "pidformer", None)
    if saved is None:
        raise InputError(
            f"{folder} holds no converted model (its config.json has no pidformer section); load "
            "it with transformers, then pf.convert it"
        )
    conversion = Conversion.from_dict(saved, f"config.json of {folder}")
    model = load_plain(folder, **options)
    convert_hugging_face(model, lambda depth: conversion.fitting(depth, folder))
    if conversion.learn_gains:
        _load_gains(model, Path(folder))
    return model


def load_plain(folder: str | Path, **options: Any) -> Any:
    """The model of a folder, of the class that its config.json names, without a controller."""
    config = _config(folder)
    name = config.architectures[0]
    kind = getattr(transformers, name, None) if name.isidentifier() else None
    is_model = isinstance(kind, type) and issubclass(kind, PreTrainedModel)
    if not is_model or getattr(kind, "config_class", None) is not type(config):
        raise InputError(f"{folder} names {name!r}, which is no {config.model_type} model")
    if config._attn_implementation == NAME:
        saved = getattr(config, "pidformer", None)
        before = saved.get("attention") if isinstance(saved, dict) else None
        options.setdefault("attn_implementation", before if before in PLAIN else PLAIN[0])
    return read_pretrained(kind, folder, **options)


def _config(folder: str | Path) -> Any:
    check_family(str(folder), read_config(folder)["model_type"])
    try:
        return transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # the library checks fields in many ways
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"config.json of {folder} cannot be read ({reason})") from None


def _begin(backbone: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Before each forward pass: a fresh tape."""
    owns = next(is_own(module) for module in _controlled(backbone))
    if backbone.config._attn_implementation not in (PLAIN if owns else (NAME,)):
        raise InputError(
            f"the attention of this model was set to {backbone.config._attn_implementation!r} after"
            " it was converted, which leaves the controller out; pf.revert it first, or call "
            f'model.set_attn_implementation("{NAME}")'
        )
    if backbone.training and not torch.compiler.is_compiling():
        _check_checkpointing(backbone)
    tape = Tape(keeps_weights=bool(kwargs.get("output_attentions")))
    handed = {**kwargs, KEYWORD: tape}
    if owns and ASKED in inspect.signature(backbone.forward).parameters:
        handed[ASKED] = tape  # the only keyword that such layers hand on
    return args, handed


def _check_checkpointing(backbone: nn.Module) -> None:
    for module in backbone.modules():
        if getattr(module, "gradient_checkpointing", False):
            function = getattr(module, "_gradient_checkpointing_func", None)
            if getattr(function, "keywords", {}).get("use_reentrant", False):
                raise InputError(
                    "reentrant checkpointing loses the controller's gradients; call "
                    "model.gradient_checkpointing_enable({'use_reentrant': False})"
                )
            return


def _controlled(model: nn.Module) -> list[Any]:
    return [m for m in model.modules() if hasattr(m, "pid_layer")]


def _attention(model: Any) -> list[Any]:
    """The self-attention modules, first layer first; or why not, and what inside it can be."""
    try:
        return _self_attention(model)
    except InputError as error:
        parts = _convertible(model)
        if not parts:
            raise
        raise InputError(f"{error}; by itself, its {' or its '.join(parts)} can be") from None


def _convertible(model: nn.Module) -> list[str]:
    """The names of models inside another that can be converted by themselves."""
    found: list[str] = []
    for name, part in model.named_modules():
        is_new = name and not name.startswith(tuple(f"{outer}." for outer in found))
        if is_new and isinstance(part, PreTrainedModel):
            with suppress(InputError):
                _self_attention(part)
                found.append(name)
    return found


def _self_attention(model: Any) -> list[Any]:
    name, kind = type(model).__name__, getattr(model.config, "model_type", None)
    kind = check_family(name, kind)
    if model.config._attn_implementation not in PLAIN:
        raise InputError(
            f"{name} attends by {model.config._attn_implementation!r}, which the controller cannot "
            'join; call model.set_attn_implementation("sdpa") first'
        )
    if getattr(model.config, "output_attentions", False):
        raise InputError(
            f"{name} has output_attentions=True in its configuration, which transformers saves "
            "for eager attention alone; set config.output_attentions = False and ask in the call"
        )
    for option in ("add_cross_attention", "reorder_and_upcast_attn", "slow_but_exact"):
        if getattr(model.config, option, False):
            raise InputError(f"{name} with {option}=True cannot be converted")
    found = [m for m in model.modules() if type(m).__name__ == FAMILIES[kind]]
    depth = model.config.num_hidden_layers
    if len(found) != depth:
        if kind in REFUSED:
            raise InputError(f"{name} (model type {kind!r}) cannot be converted: {REFUSED[kind]}")
        others = sorted({type(m).__name__ for m in model.modules() if "Attention" in str(type(m))})
        raise InputError(
            f"{name} has {len(found)} {FAMILIES[kind]} in {depth} layers (found: "
            f"{', '.join(others) or 'no attention'}), and cannot be converted as a whole"
        )
    return found


def _backbone(model: nn.Module, attention: list[Any]) -> nn.Module:
    """The innermost model around all layers, whose keyword arguments reach their attention."""
    around = [
        m
        for m in model.modules()
        if isinstance(m, PreTrainedModel) and set(map(id, attention)) <= set(map(id, m.modules()))
    ]
    for module in (around[-1], attention[0]):
        parameters = inspect.signature(module.forward).parameters.values()
        if not any(p.kind is p.VAR_KEYWORD or p.name == ASKED for p in parameters):
            raise InputError(
                f"{type(module).__name__} of transformers {transformers.__version__} takes no "
                "further keyword arguments, by which the controller's state travels; use "
                "transformers >= 5"
            )
    return around[-1]


def _value_heads(config: Any) -> int:
    """How many values a token has in a layer, as a cache keeps them."""
    if getattr(config, "multi_query", False) and not getattr(
        config, "new_decoder_architecture", False
    ):
        return 1
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


def _configs(model: nn.Module) -> list[Any]:
    """The configurations in a model, each once."""
    found = [m.config for m in model.modules() if isinstance(m, PreTrainedModel)]
    return list({id(config): config for config in found}.values())


def _load_gains(model: nn.Module, folder: Path) -> None:
    """Read the learned gains, by layer number and name: layers may be saved under older names."""
    from safetensors import safe_open

    missing = {_place(name): name for name in model.state_dict() if ".gains.raw_" in name}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as held:
            for name in held.keys():  # noqa: SIM118 (no mapping)
                if ".gains.raw_" in name and _place(name) in missing:
                    ours = model.get_parameter(missing.pop(_place(name)))
                    ours.data.copy_(held.get_tensor(name))
    if missing:
        raise InputError(f"{folder} lacks the learned gains {', '.join(sorted(missing.values()))}")


def _place(name: str) -> tuple[str, str]:
    """The number of the layer and the name of the gain: ("2", "raw_load").

    It is the first number: T5's layers have numbered parts (block.2.layer.0).
    """
    parts = name.split(".")
    return next(part for part in parts if part.isdigit()), parts[-1]
