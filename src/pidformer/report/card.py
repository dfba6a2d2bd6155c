"""README.md of a published model: what it is, what was measured, how to load it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pidformer.report.collect import collect
from pidformer.report.markdown import table
from pidformer.report.numbers import NONE
from pidformer.report.publish import data_name, without_folders
from pidformer.report.rerun import train_command
from pidformer.report.run import Run
from pidformer.results import Record, as_text
from pidformer.runs.weights import fingerprint


class _Task(NamedTuple):
    what: str
    tag: str
    """The hub's name of the task."""
    library: str
    use: str


_IMAGES = """\
import pidformer as pf

model = pf.load("FOLDER")  # in evaluation mode
logits = model(images)     # {shape}, pixels in [0, 1] -> {logits}
```

```sh
pidformer evaluate FOLDER{data}"""
_TEXT = """\
import pidformer.models.causal_lm  # registers the model
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")"""
_TASKS = {
    "classification": _Task("image classifier", "image-classification", "pidformer", _IMAGES),
    "segmentation": _Task("segmentation model", "image-segmentation", "pidformer", _IMAGES),
    "language": _Task("causal language model", "text-generation", "transformers", _TEXT),
}
_SCORES = {
    "top1": ("top-1 accuracy, %", "accuracy"),
    "aupr": ("AUPR, %", "aupr"),
    "miou": ("mIoU, %", "mean_iou"),
    "ppl": ("perplexity", "perplexity"),
    "bits_per_character": ("bits per character", "bits_per_character"),
}
"""What a card shows of a record: in words, and as the hub calls it."""
_CARD = """\
---
{front}
---

# {name}

{what}, {kind}: {count:,} parameters, trained on {data} with pidformer{gains}.

## Use

FOLDER is this folder, downloaded.

```python
{use}
```

## Measured

{measured}

## Training

```sh
{command}
```

DATA is the folder of {data}. The recipe in full:

```yaml
{recipe}
```

## Licence

{license} pidformer itself is Apache-2.0.

## Citation

```bibtex
@inproceedings{{nguyen2024pidformer,
  title     = {{{{PIDformer}}: Transformer Meets Control Theory}},
  author    = {{Nguyen, Tam and Uribe, C{{\\'e}}sar A. and Nguyen, Tan M. and
               Baraniuk, Richard G.}},
  booktitle = {{International Conference on Machine Learning (ICML)}},
  year      = {{2024}}
}}
```
"""


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
    gains = model.gains if run.task == "language" else model.model.gains
    scores = list(_scores(run, fingerprint(model), as_text(gains)))
    data = recipe["data"]["name"]
    return _CARD.format(
        front=_front(run, task, scores, license),
        name=run.label,
        what=f"{'An' if task.what[0] in 'aeiou' else 'A'} {task.what}",
        kind="softmax attention" if gains is None else "PID attention",
        count=sum(p.numel() for p in model.parameters()),
        data=data,
        gains="" if gains is None else f"; gains {gains}",
        use=task.use.format(**_shapes(run, data, model)) if task.use is _IMAGES else task.use,
        measured=_measured(run, scores),
        command=train_command(recipe),
        recipe=yaml.safe_dump(recipe, sort_keys=False).strip(),
        license=f"The weights: {license}."
        if license
        else f"None is named for the weights; the terms of {data} may bind them.",
    )


def _front(run: Run, task: _Task, scores: Sequence[_Score], license: str | None) -> str:
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
                "metrics": [
                    {
                        "type": _SCORES[score.metric][1],
                        "name": _SCORES[score.metric][0],
                        "value": round(score.value, 4),
                    }
                ],
            }
            for score in scores
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
                row, items = _row(record), _items(record)
                yield _Score(data_name(record, run), row, name, value, interval, items)


def _row(record: Record) -> str:
    row, threat = str(record.settings.get("row")), record.measurement.threat
    return f"{row}, {threat}" if threat and threat != row else row


def _items(record: Record) -> str:
    for name in ("images", "tokens"):
        if name in record.metrics:
            return f"{record.metrics[name]:,.0f} {name}"
    return NONE


def _measured(run: Run, scores: Sequence[_Score]) -> str:
    if scores:
        rows = []
        for s in scores:
            digits = 3 if s.metric == "bits_per_character" else 2
            ends = NONE
            if s.interval is not None:
                ends = " to ".join(f"{end:.{digits}f}" for end in s.interval)
            named = [s.data, s.row, _SCORES[s.metric][0]]
            rows.append([*named, f"{s.value:.{digits}f}", ends, s.items])
        heads = ["data", "row", "score", "value", "95 % interval", "on"]
        return (
            f"{table(heads, rows, left=3)}\n\n"
            "Intervals speak of new items and this trained model, not of other training seeds."
        )
    scored = run.of("evaluate")
    if not scored:
        return "Nothing yet."
    last = {n: v for n, v in scored[-1].metrics.items() if n in _SCORES}
    said = ", ".join(f"{_SCORES[name][0]} {value:.2f}" for name, value in last.items())
    return f"Last validation during training: {said or NONE}."


def _shapes(run: Run, data: str, model: Any) -> dict[str, str]:
    channels = len(model.mean.flatten())
    sizes = (run.recipe or {})["data"]["image_size"]
    pixels = f"{sizes}, {sizes}"
    return {
        "shape": f"(batch, {channels}, {pixels})",
        "logits": f"(batch, classes{f', {pixels}' if run.task == 'segmentation' else ''})",
        "data": "" if data == "digits" else " --data DATA",
    }
