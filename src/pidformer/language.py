"""A language model with its tokenizer, from a run folder or a folder as Hugging Face keeps it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from pidformer.checkpoint import (
    load_checkpoint,
    load_weights,
    put_weights,
    read_model_info,
    read_recipe,
)
from pidformer.data.text import Tokenizer, tokenizer_from
from pidformer.data.text.tokenizers import load_tokenizer
from pidformer.errors import InputError, unknown
from pidformer.files import check_links
from pidformer.models.causal_lm import PIDformerForCausalLM
from pidformer.models.language.build import build_language_model, read_pretrained
from pidformer.models.language.folder import read_config

Weights = Literal["auto", "best", "model", "ema"]


class LanguageModel(NamedTuple):
    model: PIDformerForCausalLM
    """In evaluation mode."""
    tokenizer: Tokenizer
    length: int
    """Tokens it was trained on at a time."""


def load_language(
    folder: str | Path, *, gains: Any = None, weights: Weights = "auto"
) -> LanguageModel:
    """The model of a run folder, or of one written by `save_pretrained`, and its tokenizer.

    `weights` are those that were best on the validation text if the run keeps them, else the last
    ("auto"); or "best", "model" (the last) or "ema" by name. `gains` replaces the controller the
    model was trained with; a warning names both.
    """
    folder = Path(folder)
    if not (folder / "recipe.yaml").exists() and (folder / "config.json").exists():
        return _exported(folder, gains)
    recipe = read_recipe(folder)
    if recipe.get("task") != "language":
        raise InputError(f"run {folder} is no language model; its task is {recipe.get('task')}")
    info = read_model_info(folder)
    tokenizer = tokenizer_from(info["tokenizer"])
    model = build_language_model(recipe["model"], **info["build"])
    if gains is not None:
        trained = model.gains
        model = build_language_model(recipe["model"] | {"gains": gains}, **info["build"])
        if model.gains != trained:
            warnings.warn(
                f"run {folder} was trained with gains {trained}, loaded with {model.gains}",
                stacklevel=2,
            )
    found = _weights(folder, weights)
    _check_vocabulary(folder, found["model.embed_tokens.weight"].shape[0], tokenizer)
    put_weights(model, found, folder)
    return LanguageModel(model.eval(), tokenizer, info["build"]["length"])


def _exported(folder: Path, gains: Any) -> LanguageModel:
    kind = read_config(folder)["model_type"]
    if kind != PIDformerForCausalLM.config_class.model_type:  # it would start with fresh weights
        raise InputError(
            f"{folder} holds a model of {kind}, not a language model of ours; load a converted one "
            "with pf.from_pretrained"
        )
    if not (folder / "tokenizer.json").is_file():
        raise InputError(f"{folder} has no tokenizer.json; save its tokenizer there")
    options = {} if gains is None else {"gains": gains}
    model = read_pretrained(PIDformerForCausalLM, folder, **options)
    tokenizer: Tokenizer = load_tokenizer(str(folder))
    kept = folder / "vocabulary.json"
    if kept.exists():  # our words, which spell themselves without Hugging Face
        tokenizer = tokenizer_from(json.loads(kept.read_text()))
    _check_vocabulary(folder, model.config.vocab_size, tokenizer)
    return LanguageModel(model.eval(), tokenizer, model.config.max_position_embeddings)


def _weights(run: Path, name: Weights) -> dict[str, Tensor]:
    if name not in ("auto", "best", "model", "ema"):
        raise unknown("weights", name, ("auto", "best", "model", "ema"))
    check_links(run)
    if name == "auto":
        name = "best" if (run / "best.safetensors").exists() else "model"
    path = run / f"{name}.safetensors"
    if path.exists():
        return load_weights(path)
    checkpoint = load_checkpoint(run)
    if checkpoint is None or name not in checkpoint.tensors:
        raise InputError(f"run {run} has no {name} weights yet; train it first")
    return checkpoint.tensors[name]


def _check_vocabulary(folder: Path, size: int, tokenizer: Tokenizer) -> None:
    if size != tokenizer.size:
        raise InputError(
            f"the weights in {folder} are for a vocabulary of {size}, its tokenizer has "
            f"{tokenizer.size}; they do not belong together"
        )
