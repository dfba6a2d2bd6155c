"""A language run as a folder that Hugging Face's tools load, with a card from its records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from pidformer import results
from pidformer.data.text import Tokenizer, WordVocabulary
from pidformer.errors import InputError
from pidformer.files import atomic_path
from pidformer.report.markdown import table
from pidformer.runs.folder import read_recipe
from pidformer.runs.model import LanguageModel, load_language
from pidformer.runs.weights import Weights


def export_language(run: str | Path, out: str | Path, *, weights: Weights = "auto") -> Path:
    """Write `out`: config.json, model.safetensors, the tokenizer and README.md, ready to push.

    `AutoModelForCausalLM.from_pretrained(out)` and `AutoTokenizer.from_pretrained(out)` load it
    after `import pidformer.models.causal_lm`.
    """
    run, out = Path(run), Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is not an empty folder; choose another one")
    loaded = load_language(run, weights=weights)
    out.mkdir(parents=True, exist_ok=True)
    loaded.model.save_pretrained(out)
    fast_tokenizer(loaded.tokenizer).save_pretrained(out)
    files = {"README.md": model_card(run, loaded)}
    if loaded.tokenizer.kind == WordVocabulary.kind:
        files["vocabulary.json"] = json.dumps(loaded.tokenizer.to_dict())
    for name, text in files.items():
        with atomic_path(out / name) as path:
            path.write_text(text)
    return out


def fast_tokenizer(tokenizer: Tokenizer) -> Any:
    """A tokenizer as `transformers` has them; a word vocabulary becomes a word-level model."""
    from tokenizers import Tokenizer as Fast
    from transformers import PreTrainedTokenizerFast

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


_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
- pidformer
---

# {name}

A causal language model with PID attention, {kind}: {count:,} parameters, a vocabulary of \
{vocabulary:,}, trained on {data} ({length} tokens at a time, seed {seed}) with pidformer.

```python
import pidformer.models.causal_lm  # registers the model
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```

## Measured

{measured}

## Recipe

```yaml
{recipe}
```
"""


def model_card(run: str | Path, loaded: LanguageModel) -> str:
    """README.md for a model hub: what it is, how it was trained, what was measured."""
    recipe, gains = read_recipe(Path(run)), loaded.model.gains
    return _CARD.format(
        name=Path(run).resolve().name,
        kind="its softmax twin (no controller)" if gains is None else f"gains {gains}",
        count=sum(p.numel() for p in loaded.model.parameters()),
        vocabulary=loaded.model.config.vocab_size,
        data=recipe["data"]["name"],
        length=loaded.length,
        seed=recipe["seed"],
        measured=_measured(results.read(run)),
        recipe=yaml.safe_dump(recipe, sort_keys=False).strip(),
    )


def _measured(records: Sequence[results.Record]) -> str:
    """The newest record of each measurement, or the last validation during training."""
    found = {replace(r.measurement, weights=None): r for r in records if r.kind == "language"}
    if found:
        heads = ["text", "protocol", "perplexity", "bits per character", "targets"]
        rows = []
        for m, s in ((r.metrics, r.settings) for r in found.values()):
            numbers = [f"{m['ppl']:.2f}", f"{m['bits_per_character']:.3f}", f"{m['tokens']:.0f}"]
            rows.append([Path(str(s["data"])).name, str(s["row"]), *numbers])
        return table(heads, rows, left=2)
    scored = [record for record in records if record.kind == "evaluate"]
    if not scored:
        return "Nothing yet."
    m = scored[-1].metrics
    return f"Validation perplexity during training, in independent segments: {m['ppl']:.2f}."
