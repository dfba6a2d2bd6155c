"""Accuracy under threats: one record for each, resumable, with what each image did."""
# B images, K classes

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pidformer import ranks
from pidformer.errors import InputError, shortened
from pidformer.ledger import Found, Ledger
from pidformer.nn import evaluating
from pidformer.nn.gains import device_of
from pidformer.results import Record, as_text
from pidformer.robustness.ood import check_classes
from pidformer.robustness.queries import logits_of
from pidformer.robustness.threat import Model, Threat, check_tensors
from pidformer.runs.weights import facts_of
from pidformer.statistics import Hits, pack, percentage

KIND = "robustness"
Batches = Iterable[tuple[Tensor, Tensor]]
"""Images in [0, 1] and their labels; walked once for each threat."""


def evaluate(
    model: Model,
    data: Batches,
    threats: Mapping[str, Threat | None] | Sequence[Threat | None],
    *,
    seed: int = 0,
    classes: Sequence[int] | None = None,
    folder: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    watch: Callable[[str, int], None] | None = None,
) -> dict[str, Record]:
    """Top-1 and top-5 accuracy with 95 % intervals under each threat; None is the clean set.

    `threats` are named by a mapping, or by their `repr`. With a `folder`, each record is appended
    to its results.jsonl as soon as it is there, and a threat that the folder already has, with
    the same weights, gains, seed and `settings` (say what the data is: `data_hash`), is not run
    again: a killed evaluation resumes. `classes` are the only outputs that count, when the data
    has fewer than the model. `watch(row, images)` is called after every batch.
    """
    threats = _named(threats)
    about = dict(settings or {}) | {"seed": seed}
    if folder is not None and isinstance(model, nn.Module):
        about = facts_of(model) | about
    ledger = Ledger(KIND, folder, about)
    found = {}
    for row, threat in threats.items():
        told = None if watch is None else partial(watch, row)
        work = partial(accuracy, model, data, threat, seed=seed, classes=classes, watch=told)
        found[row] = ledger.measure({"row": row, "threat": as_text(threat)}, work)
    return found


def _named(threats: Any) -> Mapping[str, Threat | None]:
    named = threats
    if isinstance(threats, Sequence) and not isinstance(threats, str):
        named = {"clean" if threat is None else repr(threat): threat for threat in threats}
    if isinstance(named, Mapping) and all(t is None or callable(t) for t in named.values()):
        return named
    raise InputError(
        "threats are a list, or a mapping by name, of None (clean) and attacks such as "
        f"FGSM(eps='3/255'), got {shortened(threats)}; threat_from('fgsm') reads a name"
    )


def accuracy(model: Model, data: Batches, threat: Threat | None = None, **options: Any) -> Found:
    """Metrics and details of one row, what `evaluate` records; `options` are `hits_under`'s."""
    right, right5, outputs = hits_under(model, data, threat, **options)
    total = len(right)
    if not total:
        raise InputError(
            "there are no images to evaluate; is the limit 0, or the folder empty? A generator of "
            "batches is walked only once: give a list or a DataLoader"
        )
    metrics = percentage("top1", int(right.sum()), total)
    if outputs > 5:  # of five classes all are among the best five
        metrics |= percentage("top5", int(right5.sum()), total)
    metrics["images"] = float(total)
    if threat is None:
        _warn_of_chance(metrics, outputs)
    return metrics, {"right": pack(right), "right5": pack(right5)}


def accuracy_under(
    model: Model, data: Batches, threat: Threat | None = None, *, seed: int = 0
) -> tuple[int, int]:
    """(images classified right, images): the count alone, recorded nowhere."""
    right, _, _ = hits_under(model, data, threat, seed=seed)
    return int(right.sum()), len(right)


def hits_under(
    model: Model,
    data: Batches,
    threat: Threat | None = None,
    *,
    seed: int = 0,
    classes: Sequence[int] | None = None,
    watch: Callable[[int], None] | None = None,
) -> tuple[Hits, Hits, int]:
    """Whether each label is the best output, and among the best five; and K."""
    # None, for a plain callable: images stay where they are
    device = device_of(model) if isinstance(model, nn.Module) else None
    chosen = None if classes is None else torch.as_tensor(classes)

    def answers(images: Tensor, labels: Tensor) -> Tensor:
        with evaluating(model), torch.no_grad():
            logits = logits_of(model, images)
        check_logits(logits, labels)
        return logits

    def hits(batch: tuple[Tensor, Tensor], place: int) -> tuple[Tensor, Tensor, int]:
        images, labels = batch
        check_tensors(images, labels)
        labels = labels if labels.is_floating_point() else labels.long()
        if device is not None:
            images, labels = images.to(device), labels.to(device)
        try:
            shown = images
            if threat is not None:
                shown = threat(model, images, labels, seed=seed, offset=place)
        except (IndexError, RuntimeError):  # torch's, where a label has no logit
            answers(images, labels)
            raise
        logits = answers(shown, labels)
        outputs = logits.shape[1]
        if chosen is not None:
            kept = check_classes(chosen, outputs).to(logits.device)
            masked = torch.full_like(logits, -float("inf"))
            logits, outputs = masked.index_copy(1, kept, logits[:, kept]), len(kept)
        above = _above(logits, labels[:, None])
        if watch is not None:
            watch(place + len(labels))
        return (above < 1).cpu(), (above < 5).cpu(), outputs

    found = ranks.spread(data, hits)
    if not found:
        return np.zeros(0, bool), np.zeros(0, bool), 0
    best, best5, outputs = zip(*found, strict=True)
    return torch.cat(best).numpy(), torch.cat(best5).numpy(), outputs[-1]


def _above(logits: Tensor, labels: Tensor) -> Tensor:
    """How many classes come before the true one (B, 1): larger logits, and equal ones before it.

    So 0 is where argmax gives the label, by which attacks decide. topk orders ties in any way.
    """
    own = logits.gather(1, labels)
    is_before = torch.arange(logits.shape[1], device=labels.device) < labels
    return ((logits > own) | ((logits == own) & is_before)).sum(1)


def check_logits(logits: Tensor, labels: Tensor) -> None:
    """Refuse what no accuracy can be computed from."""
    if logits.ndim != 2 or len(logits) != len(labels):
        raise InputError(
            f"the model must give logits (B, classes), got {tuple(logits.shape)} for "
            f"{len(labels)} images"
        )
    if labels.ndim != 1 or labels.is_floating_point():
        raise InputError(
            f"labels must be int64 (B,), one class per image, got {labels.dtype} "
            f"{tuple(labels.shape)}"
        )
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < logits.shape[1]):
        raise InputError(
            f"labels run from {int(labels.min())} to {int(labels.max())}, but the model has "
            f"{logits.shape[1]} outputs; is it a model of other classes?"
        )
    is_finite = logits.isfinite().all(1)
    if not bool(is_finite.all()):
        raise InputError(
            f"the model's logits are not finite for {int((~is_finite).sum())} of {len(labels)} "
            "images; check its weights, or evaluate it in float32"
        )


def _warn_of_chance(metrics: Mapping[str, float], outputs: int) -> None:
    if metrics["images"] >= 50 and metrics["top1_low"] <= 100 / outputs:
        warnings.warn(
            f"clean accuracy {metrics['top1']:.2f} % is that of chance ({outputs} classes); if "
            "the model wants normalised images, wrap it: PixelModel(model, mean, std); if it "
            "normalises by itself, do not wrap it",
            stacklevel=6,
        )
