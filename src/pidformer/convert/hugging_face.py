"""Hugging Face models with a controller, through its attention interface.

The model keeps its class, its weights and its loop. Its attention is told to call ours ("pidformer"
in the interface: scaled dot-product attention, then the control), and each forward pass of its
backbone gets a fresh `Tape` among the keyword arguments, which every layer hands to attention.
"""
# B batch, H heads, Hkv key/value heads, N tokens, M keys, D head dim

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from pidformer.control.gains import PIDGains
from pidformer.control.pid import pid_step
from pidformer.convert.conversion import Conversion, remove
from pidformer.convert.tape import Tape
from pidformer.errors import InputError
from pidformer.models.language.build import read_pretrained
from pidformer.models.language.folder import read_config
from pidformer.nn.gains import acting_gains
from pidformer.ops.attention import add_control

NAME = "pidformer"
KEYWORD = "pid_tape"
FAMILIES = {
    "llama": "LlamaAttention",
    "mistral": "MistralAttention",
    "qwen2": "Qwen2Attention",
    "qwen3": "Qwen3Attention",
    "gemma": "GemmaAttention",
    "gpt2": "GPT2Attention",
    "gpt_neox": "GPTNeoXAttention",
    "vit": "ViTAttention",
    "dinov2": "Dinov2Attention",
    "dinov2_with_registers": "Dinov2WithRegistersAttention",
    "bert": "BertSelfAttention",
    "roberta": "RobertaSelfAttention",
}
"""Model types, and the class that attends in each."""


def pid_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Hugging Face's own scaled dot-product attention, plus the control; (B, N, H, D).

    A query head's value is that of its group. A module without a controller just attends.
    """
    tape = options.pop(KEYWORD, None)
    out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if not hasattr(module, "pid_layer"):
        return out, None
    if tape is None:
        raise InputError(
            f"{type(module).__name__} was called outside its model's forward pass; the controller "
            "needs the layers before it"
        )
    layer, own = module.pid_layer, own_values(module, query, value, attention_mask, options)
    state, gains = tape.read(layer), acting_gains(module)
    assert gains is not None
    control, after = pid_step(own, state, gains, module.first_layer)
    tape.write(layer, after)
    if state is None and module.first_layer == "free":
        return out, None
    return add_control(out.transpose(1, 2), control).transpose(1, 2).contiguous(), None


def own_values(
    module: Any, query: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]
) -> Tensor:
    """The values of the tokens that ask, (B, Hkv, N, D), out of all that the cache holds.

    A cache that grows has them at its end, one of fixed size at the places it was told; there, a
    causal mask shows each query up to its own place and no further.
    """
    count, held = query.shape[2], value.shape[2]
    if count == held:
        return value
    is_causal = options.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if mask is None:  # as Hugging Face reads it: an empty cache of fixed size, or a growing one
        return value[:, :, :count] if count > 1 and is_causal else value[:, :, held - count :]
    seen = mask[:, :1] if mask.dtype == torch.bool else mask[:, :1] > torch.finfo(mask.dtype).min
    place = held - 1 - seen.flip(-1).int().argmax(-1)  # (B, 1, N), the last that is seen
    if place.shape[0] != value.shape[0]:
        place = place.expand(value.shape[0], -1, -1)
    index = place[..., None].expand(-1, value.shape[1], -1, value.shape[3])
    return value.gather(2, index)


# Our attention, and the mask that goes with it: without one, causality would be lost. At import,
# not at conversion: a converted model may come out of a pickle, into a process that has none.
AttentionInterface.register(NAME, pid_attention_forward)
AttentionMaskInterface.register(NAME, sdpa_mask)


def convert_hugging_face(model: Any, conversion_for: Any) -> None:
    """Convert in place; refused before anything is touched, or done as a whole."""
    is_again = is_converted(model)
    attention = _controlled(model) if is_again else _attention(model)
    conversion: Conversion = conversion_for(len(attention))
    backbone = _backbone(model, attention)
    controllers = conversion.controllers(attention, _value_heads(model.config))
    if is_again:
        revert_hugging_face(model)
    conversion.put(attention, controllers)
    for layer, module in enumerate(attention):
        module.pid_layer = layer
    handle = backbone.register_forward_pre_hook(_begin, with_kwargs=True)
    model._pid_hook = (backbone, handle.id)
    model._pid_before = model.config._attn_implementation
    for config in _configs(model):
        config._attn_implementation = NAME
        config.pidformer = conversion.to_dict()


def revert_hugging_face(model: Any) -> None:
    """The model as it was before."""
    if not is_converted(model):
        raise InputError(f"{type(model).__name__} was not converted; there is nothing to revert")
    backbone, hook = model._pid_hook
    del backbone._forward_pre_hooks[hook], backbone._forward_pre_hooks_with_kwargs[hook]
    attention = _controlled(model)
    remove(attention)
    for module in attention:
        del module.pid_layer
    for config in _configs(model):
        config._attn_implementation = model._pid_before
        del config.pidformer
    del model._pid_hook, model._pid_before


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
    try:
        conversion = Conversion(
            gains=tuple(PIDGains.from_dict(layer) for layer in saved["gains"]),
            first_layer=saved["first_layer"],
            learn_gains=saved["learn_gains"],
        )
    except (KeyError, TypeError) as error:
        raise InputError(
            f"the pidformer section in config.json of {folder} is damaged ({error}); convert the "
            "model again"
        ) from None
    model = load_plain(folder, **options)
    convert_hugging_face(model, lambda depth: conversion)
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
    return read_pretrained(kind, folder, **options)


def _config(folder: str | Path) -> Any:
    given = read_config(folder)["model_type"]
    if given not in FAMILIES:
        raise InputError(
            f"{folder} names no model that can be converted (model type {given!r}); supported: "
            f"{', '.join(FAMILIES)}"
        )
    try:
        return transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # the library checks fields in many ways
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"config.json of {folder} cannot be read ({reason})") from None


def is_converted(model: Any) -> bool:
    return hasattr(model, "_pid_hook")


def _begin(backbone: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Before each forward pass: a fresh tape."""
    if backbone.config._attn_implementation != NAME:
        raise InputError(
            f"the attention of this model was set to {backbone.config._attn_implementation!r} after"
            " it was converted, which leaves the controller out; pf.revert it first, or call "
            f'model.set_attn_implementation("{NAME}")'
        )
    if backbone.training and not torch.compiler.is_compiling():
        _check_checkpointing(backbone)
    return args, {**kwargs, KEYWORD: Tape()}


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
    """The self-attention modules, first layer first, or the reason why not."""
    name, kind = type(model).__name__, getattr(model.config, "model_type", None)
    if kind not in FAMILIES:
        raise InputError(
            f"{name} (model type {kind!r}) cannot be converted; supported: {', '.join(FAMILIES)}"
        )
    if model.config._attn_implementation not in ("sdpa", "eager"):
        raise InputError(
            f"{name} attends by {model.config._attn_implementation!r}, which the controller cannot "
            'join; call model.set_attn_implementation("sdpa") first'
        )
    for option in ("add_cross_attention", "reorder_and_upcast_attn"):
        if getattr(model.config, option, False):
            raise InputError(f"{name} with {option}=True cannot be converted")
    found = [m for m in model.modules() if type(m).__name__ == FAMILIES[kind]]
    depth = model.config.num_hidden_layers
    if len(found) != depth:
        others = sorted({type(m).__name__ for m in model.modules() if "Attention" in str(type(m))})
        raise InputError(
            f"{name} has {len(found)} {FAMILIES[kind]} in {depth} layers (found: "
            f"{', '.join(others) or 'no attention'}); only unchanged models can be converted"
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
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise InputError(
                f"{type(module).__name__} of transformers {transformers.__version__} takes no "
                "further keyword arguments, by which the controller's state travels; use "
                "transformers >= 5"
            )
    return around[-1]


def _configs(model: nn.Module) -> list[Any]:
    """The configurations in a model, each once."""
    found = [m.config for m in model.modules() if isinstance(m, PreTrainedModel)]
    return list({id(config): config for config in found}.values())


def _value_heads(config: Any) -> int:
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


def _load_gains(model: nn.Module, folder: Path) -> None:
    """The learned gains, which the model did not have a place for while its weights were read."""
    from safetensors import safe_open

    names = {name for name in model.state_dict() if ".gains.raw_" in name}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as held:
            for name in names & set(held.keys()):
                model.get_parameter(name).data.copy_(held.get_tensor(name))
                names = names - {name}
    if names:
        raise InputError(f"{folder} lacks the learned gains {', '.join(sorted(names))}")
