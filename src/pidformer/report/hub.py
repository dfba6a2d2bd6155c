"""A run as a folder for a model hub: weights, what builds the model, and a card."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pidformer.errors import InputError, shortened
from pidformer.files import atomic_folder, new_folder
from pidformer.report.card import model_card
from pidformer.report.publish import without_folders
from pidformer.runs.folder import (
    read_model_info,
    read_recipe,
    save_weights,
    write_model_info,
    write_recipe,
)
from pidformer.runs.model import load, load_language
from pidformer.runs.weights import Weights, run_weights

if TYPE_CHECKING:
    from pidformer.data.text import Tokenizer

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}")


def publish_run(
    run: str | Path, out: str | Path, *, weights: Weights = "auto", license: str | None = None
) -> Path:
    """Write `out`, whole or not at all: a folder to push to a hub, with README.md, a model card.

    Runs of images become run folders without records and without paths of this machine, for
    `pf.load(out)`. Language runs become folders of Hugging Face, for `AutoModelForCausalLM` and
    `AutoTokenizer` after `import pidformer.models.causal_lm`. `license` is the identifier under
    which the weights are published; without one the card names none.
    """
    run, out = Path(run), new_folder(out)
    if license is not None and _LICENSE.fullmatch(license) is None:
        raise InputError(
            f"no licence identifier: {shortened(license)}; give one such as apache-2.0 or cc-by-4.0"
        )
    if not run.is_dir():
        raise InputError(f"no run folder at {run}; train one with pidformer train")
    is_language = read_recipe(run).get("task") == "language"
    with atomic_folder(out) as folder:
        write = _write_language if is_language else _write_images
        model = write(run, folder, weights)
        (folder / "README.md").write_text(model_card(run, model, license), encoding="utf-8")
    return out


def _write_images(run: Path, folder: Path, weights: Weights) -> Any:
    """recipe.yaml, model.json and model.safetensors; the model."""
    model = load(run, weights=weights)  # what cannot be loaded is not published
    info = read_model_info(run)
    kept = {k: v if k == "classes" else without_folders(v) for k, v in info.items() if k != "data"}
    write_recipe(folder, without_folders(read_recipe(run)))
    write_model_info(folder, kept)
    save_weights(folder / "model.safetensors", run_weights(run, weights))
    return model


def _write_language(run: Path, folder: Path, weights: Weights) -> Any:
    """config.json, model.safetensors and the tokenizer; the model."""
    from pidformer.data.text import WordVocabulary

    loaded = load_language(run, weights=weights)
    loaded.model.save_pretrained(folder)
    fast_tokenizer(loaded.tokenizer).save_pretrained(folder)
    if loaded.tokenizer.kind == WordVocabulary.kind:
        (folder / "vocabulary.json").write_text(json.dumps(loaded.tokenizer.to_dict()))
    return loaded.model


def fast_tokenizer(tokenizer: Tokenizer) -> Any:
    """A tokenizer as `transformers` has them; a word vocabulary becomes a word-level model."""
    from tokenizers import Tokenizer as Fast
    from transformers import PreTrainedTokenizerFast

    from pidformer.data.text import WordVocabulary

    if tokenizer.kind == WordVocabulary.kind:
        fast = _word_level(tokenizer)
        ends = {"eos_token": "<eos>", "bos_token": "<eos>", "pad_token": "<eos>"}
        return PreTrainedTokenizerFast(tokenizer_object=fast, unk_token="<unk>", **ends)
    fast = Fast.from_str(json.dumps(tokenizer.to_dict()["definition"]))
    end = None if tokenizer.eos_id is None else fast.id_to_token(tokenizer.eos_id)
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, eos_token=end, bos_token=end, pad_token=end
    )


def _word_level(tokenizer: Tokenizer) -> Any:
    from tokenizers import Regex, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Fast

    fields = tokenizer.to_dict()
    vocabulary = {word: number for number, word in enumerate(fields["words"])}
    fast = Fast(models.WordLevel(vocabulary, unk_token="<unk>"))
    changes = [normalizers.Replace("\n", " <eos> ")]
    if fields["split"] == "punctuation":
        changes += [normalizers.Replace(f"@{sign}@", sign) for sign in "-,."]
        signs = Regex("<unk>|<eos>|\\w+(?:['\u2019]\\w+)*|[^\\w\\s]")
        fast.pre_tokenizer = pre_tokenizers.Split(signs, behavior="removed", invert=True)
    else:
        fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast.normalizer = normalizers.Sequence(changes)
    return fast
