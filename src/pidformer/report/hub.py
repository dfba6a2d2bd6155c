"""A run as a folder for a model hub: weights, what builds the model, and a card."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from pidformer.errors import InputError, shortened
from pidformer.files import atomic_folder, new_folder
from pidformer.report.collect import Run, collect
from pidformer.report.publish import data_name, without_folders
from pidformer.report.rerun import train_command
from pidformer.report.table_view import NONE
from pidformer.report.templates import page_template
from pidformer.results import as_text
from pidformer.runs.folder import (
    read_model_info,
    read_recipe,
    save_weights,
    write_model_info,
    write_recipe,
)
from pidformer.runs.model import load, load_language
from pidformer.runs.weights import Weights, fingerprint, run_weights

if TYPE_CHECKING:
    from pidformer.data.text import Tokenizer

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}")


class HubTask(NamedTuple):
    """A task in words, by the hub's name, and the library that loads its models."""

    what: str
    tag: str
    library: str


_TASKS = {
    "classification": HubTask("image classifier", "image-classification", "pidformer"),
    "segmentation": HubTask("segmentation model", "image-segmentation", "pidformer"),
    "language": HubTask("causal language model", "text-generation", "transformers"),
}
_SCORES = {
    "top1": ("top-1 accuracy, %", "accuracy"),
    "aupr": ("AUPR, %", "aupr"),
    "miou": ("mIoU, %", "mean_iou"),
    "ppl": ("perplexity", "perplexity"),
    "bits_per_character": ("bits per character", "bits_per_character"),
}
"""What a card shows of a record: in words, and as the hub calls it."""


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

    special: dict[str, str | None] = {}
    if tokenizer.kind == WordVocabulary.kind:
        fast, special["unk_token"] = _word_level(tokenizer), "<unk>"
    else:
        fast = Fast.from_str(json.dumps(tokenizer.to_dict()["definition"]))
    end = None if tokenizer.eos_id is None else fast.id_to_token(tokenizer.eos_id)
    special |= dict.fromkeys(("eos_token", "bos_token", "pad_token"), end)
    return PreTrainedTokenizerFast(tokenizer_object=fast, **special)


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


class _Score(NamedTuple):
    data: str
    row: str
    metric: str
    value: float
    interval: tuple[float, float] | None
    items: str


def model_card(folder: Path, model: Any, license: str | None = None) -> str:
    """The card of a run folder's model, from its recipe and from the records of these weights."""
    run = next(r for r in collect([folder]) if r.folder == folder)
    recipe, task = without_folders(run.recipe or {}), _TASKS[run.task]
    is_language = run.task == "language"
    gains = model.gains if is_language else model.model.gains
    scores = list(_scores(run, fingerprint(model), as_text(gains)))
    return page_template("report", "card.md.j2").render(
        front=_front(run, task, scores, license),
        run=run,
        task=task,
        gains=gains,
        count=sum(p.numel() for p in model.parameters()),
        channels=None if is_language else len(model.mean.flatten()),
        data=recipe["data"]["name"],
        scores=scores,
        names={metric: words for metric, (words, _) in _SCORES.items()},
        command=train_command(recipe),
        recipe=recipe,
        written=yaml.safe_dump(recipe, sort_keys=False).strip(),
        license=license,
    )


def _front(run: Run, task: HubTask, scores: Sequence[_Score], license: str | None) -> str:
    """The metadata that hubs read."""
    front: dict[str, Any] = {"library_name": task.library, "pipeline_tag": task.tag}
    if license is not None:
        front["license"] = license
    front["tags"] = ["pidformer"]
    if scores:
        results = [
            {
                "task": {"type": task.tag},
                "dataset": {"name": f"{score.data}, {score.row}", "type": score.data},
                "metrics": [{"type": tag, "name": words, "value": round(score.value, 4)}],
            }
            for score in scores
            for words, tag in [_SCORES[score.metric]]
        ]
        front["model-index"] = [{"name": run.label, "results": results}]
    return str(yaml.safe_dump(front, sort_keys=False, width=10_000)).strip()


def _scores(run: Run, weights: str, gains: str | None) -> Iterator[_Score]:
    """What was measured of these weights with these gains; the newest of each measurement."""
    newest = {
        r.measurement: r
        for r in run.records
        if r.settings.get("weights") == weights and r.measurement.gains == gains
    }
    for record in newest.values():
        for name in _SCORES:
            value = record.metrics.get(name, math.nan)
            if math.isfinite(value):
                bounds = [record.metrics.get(f"{name}_{end}", math.nan) for end in ("low", "high")]
                interval = (bounds[0], bounds[1]) if all(map(math.isfinite, bounds)) else None
                row, threat = str(record.settings.get("row")), record.measurement.threat
                row = f"{row}, {threat}" if threat and threat != row else row
                counted = (n for n in ("images", "tokens") if n in record.metrics)
                items = next((f"{record.metrics[n]:,.0f} {n}" for n in counted), NONE)
                yield _Score(data_name(record, run), row, name, value, interval, items)
