"""Folders as Hugging Face keeps models, looked at before any of it is loaded.

They may come from a stranger. Their config.json can name code to fetch and run (`auto_map`, an
attention kernel by its address, an adapter of another model) and files elsewhere; weights can be
pickles. All of it is refused in one line: what is read is JSON and safetensors, in the folder.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pidformer.errors import InputError, shortened
from pidformer.fields import TEXTS, count, read_json
from pidformer.files import check_links
from pidformer.models.options import LANGUAGE, check_fields

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_REACHING = ("auto_map", "trust_remote_code", "custom_pipelines", "transformers_weights")
_ATTENTION = (None, "eager", "sdpa", "pidformer")
_QUANTISED = ("torchao", "bitsandbytes")
_WORDS = {"vocab_size": count(100_000_000)}
_SAME = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
_SAME |= {"n_positions": "max_position_embeddings", "n_inner": "intermediate_size"}
"""GPT-2's names."""


def read_config(folder: str | Path) -> dict[str, Any]:
    """The config.json of a folder that may be loaded; `model_type` and `architectures` are text."""
    folder = Path(folder)
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{folder} is no folder of a model (no config.json){gguf_hint(folder)}")
    check_links(folder)
    fields = read_object(path)
    if not isinstance(fields.get("model_type"), str):
        raise InputError(
            f"{path} names no model: model_type is {shortened(fields.get('model_type'))}"
        )
    names = fields.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise InputError(f"{path} names no model: architectures is {shortened(names)}")
    for key, value in _all_fields(fields):
        if key in _REACHING and value is not None:
            raise InputError(f"{path} says {key}: code and files from elsewhere are never loaded")
        if "attn_implementation" in key and value not in _ATTENTION:
            raise InputError(f"{path}: {key} must be eager or sdpa, got {shortened(value)}")
        if key == "quant_method" and value not in _QUANTISED:
            methods = " or ".join(_QUANTISED)
            raise InputError(f"{path}: {key} must be {methods}, got {shortened(value)}")
    known = LANGUAGE | {name: LANGUAGE[ours] for name, ours in _SAME.items()} | _WORDS
    given = {key: value for key, value in fields.items() if key in known and value is not None}
    check_fields(given, known, f"{path}: config")
    return fields


def gguf_hint(path: Path) -> str:
    """What to do with a GGUF file, or a folder that holds one; nothing for others."""
    found = [path] if path.suffix == ".gguf" else sorted(path.glob("*.gguf"))
    if not found:
        return ""
    return (
        f"; transformers reads {found[0].name}: AutoModelForCausalLM.from_pretrained(FOLDER, "
        f"gguf_file={found[0].name!r}) needs the package gguf, and save_pretrained makes a folder"
    )


def check_weights(folder: Path) -> None:
    """Refuse a folder whose weights are not safetensors files of its own."""
    if (folder / "adapter_config.json").exists():
        raise InputError(f"{folder} holds an adapter of another model; merge the two and save that")
    if (folder / WEIGHTS).is_file():
        return
    if not (folder / INDEX).is_file():
        raise InputError(
            f"{folder} has no {WEIGHTS}; other files of weights are not opened, because a pickle "
            "is a program: save the model again with save_pretrained"
        )
    named = read_object(folder / INDEX).get("weight_map")
    names = [*named.values()] if isinstance(named, dict) else [""]
    for name in set(names) if TEXTS.takes(names) else {""}:
        is_own = Path(name).name == name and name.endswith(".safetensors")
        if not is_own or not (folder / name).is_file():
            raise InputError(
                f"{folder / INDEX} names {name!r}, which is no safetensors file beside it"
            )


def read_object(path: Path) -> dict[str, Any]:
    """The object in a file of JSON, or one line."""
    fields = read_json(path)
    if not isinstance(fields, dict):
        raise InputError(f"{path} names no model: it must be an object, got {shortened(fields)}")
    return fields


def _all_fields(fields: Any) -> Iterator[tuple[str, Any]]:
    """Keys and values at every depth."""
    for key, value in fields.items() if isinstance(fields, dict) else ():
        yield key, value
        yield from _all_fields(value)
        for entry in value if isinstance(value, list) else ():
            yield from _all_fields(entry)
