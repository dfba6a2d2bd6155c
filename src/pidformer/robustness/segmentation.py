"""Segmentation under threats: mIoU on clean, corrupted and attacked images."""
# B pairs

from __future__ import annotations

import hashlib
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pidformer import results
from pidformer.data.segmentation import (
    IGNORED,
    EvalSegments,
    SegmentSource,
    class_table,
    confusion,
    miou_interval,
    open_segmentation,
    segmentation_scores,
)
from pidformer.data.segmentation.confusion import areas, pack_areas
from pidformer.devices import as_device
from pidformer.errors import InputError
from pidformer.models.sliding import PixelLogits, Sliding, View
from pidformer.robustness.attack import PIXELS
from pidformer.robustness.attacks import FGSM, PGD
from pidformer.robustness.corruptions import CORRUPTIONS, Corruption
from pidformer.robustness.draws import Draws
from pidformer.robustness.threat import Model
from pidformer.runs.folder import read_model_info, read_recipe
from pidformer.runs.model import load
from pidformer.runs.twins import recipe_hash
from pidformer.runs.weights import fingerprint

PixelThreat = Corruption | FGSM | PGD
UNLABELLED = -100
"""The label that torch's cross entropy leaves out."""
GROUP = 16
"""Pairs of one size taken together, at most."""


def threatened(
    threat: PixelThreat | None,
    model: Model,
    images: Tensor,
    masks: Tensor,
    *,
    seed: int = 0,
    indices: list[int] | None = None,
) -> Tensor:
    """What a model of pixels is shown instead of `images` (B, 3, H, W) in [0, 1].

    An attack climbs the cross entropy of the true labels summed over the labelled pixels
    (`masks` (B, H, W), 255 = none), inside the ball around the image: `model` is the whole way
    from the image to logits (B, K, H, W) at its size. What is drawn for an image depends on (seed,
    its index) alone.
    """
    numbers = torch.as_tensor(
        range(len(images)) if indices is None else indices, device=images.device
    )
    if threat is None:
        return images
    if isinstance(threat, Corruption):
        return threat(images, seed=seed, indices=numbers)
    check_threat(threat)
    labels = masks.long().masked_fill(masks == IGNORED, UNLABELLED)
    return threat.within(PIXELS, model, images, labels, Draws((seed,), numbers))


def check_threat(threat: object) -> None:
    """Refuse what has no meaning for a map of labels."""
    if threat is None or isinstance(threat, Corruption | FGSM):
        return
    if not isinstance(threat, PGD):
        raise InputError(
            f"segmentation is evaluated under FGSM, PGD and Corruption, got {threat!r}"
        )
    if threat.early_stop or threat.restarts > 1:
        raise InputError(
            f"{threat!r}: early_stop and restarts ask whether an image is misclassified, which a "
            "map of labels is not; leave them at their defaults"
        )


def segmentation_threats(severity: int = 3) -> dict[str, PixelThreat | None]:
    """The rows of a table: clean, the 15 corruptions at one severity, and PGD on pixels."""
    rows: dict[str, PixelThreat | None] = {"clean": None}
    for name in CORRUPTIONS:
        rows[f"corruption/{name}/{severity}"] = Corruption(name=name, severity=severity)
    return rows | {"pgd": PGD()}


def evaluate_segmentation(
    run: str | Path,
    *,
    data: str | Path,
    views: str = "single",
    device: str = "auto",
    threat: PixelThreat | None = None,
    row: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    gains: Any = None,
    ema: bool = False,
    max_windows: int = 32,
    precision: Literal["float32", "bfloat16"] = "float32",
    num_workers: int = 0,
    command: str | None = None,
) -> dict[str, Any]:
    """mIoU of a segmentation run on a set's validation split; also written to its results.

    `views` "single" takes one view, "multi" twelve (six scales, each flipped too); `max_windows`
    bounds memory. Under a `threat` the images are corrupted at their own size, or attacked through
    the single-scale prediction. Returns the metrics (per cent, mIoU with a 95 % interval over
    images) and, as "classes", the table by class.
    """
    run = Path(run)
    check_threat(threat)
    recipe, info = read_recipe(run), read_model_info(run)
    if recipe.get("task") != "segmentation":
        raise InputError(
            f"{run} is a run of {recipe.get('task', 'classification')}, not of segmentation"
        )
    place = as_device(device)
    model = load(run, gains=gains, ema=ema).to(place).requires_grad_(False)
    source = open_segmentation(data, "val")
    _check_classes(run, info, source)
    sliding = Sliding.of(info["inference"], views, max_windows)
    begun = time.perf_counter()
    is_half = precision == "bfloat16"

    def logits(images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=is_half):
            return model(images)

    pairs = EvalSegments(
        source, batch_size=GROUP, limit=limit, device=place, num_workers=num_workers
    )
    total, per_pair, truth_hash = _count(logits, pairs, len(source.classes), sliding, threat, seed)
    low, high = miou_interval(per_pair)
    metrics = segmentation_scores(total) | {
        "miou_low": low,
        "miou_high": high,
        "images": float(len(per_pair)),
        "seconds": time.perf_counter() - begun,
    }
    settings = {
        "model": str(run),
        "weights": fingerprint(model),
        "label": run.name,
        "gains": _text(model.model.gains),
        "decoder_gains": _text(model.model.decoder_gains),
        "backbone": info.get("backbone"),
        "train_seed": recipe.get("seed"),
        "recipe": recipe_hash(recipe),
        "data": str(data),
        "data_hash": truth_hash,
        "views": views,
        "row": row or _row(threat),
        "threat": repr(threat),
        "domain": "pixel",
        "scale": list(sliding.scale),
        "window": sliding.window,
        "stride": sliding.stride,
        "seed": seed,
        "limit": limit,
        "ema": ema,
        "precision": precision,
        "batch_size": max_windows,
        "machine": results.machine(),
        "command": command or shlex.join(sys.argv),
    }
    details = {"confusion": total.tolist(), "areas": pack_areas(per_pair)}
    results.append(
        run,
        results.Record(kind="segmentation", metrics=metrics, settings=settings, details=details),
    )
    return metrics | {"classes": class_table(total, source.classes)}


def _count(
    model: PixelLogits,
    pairs: EvalSegments,
    classes: int,
    sliding: Sliding,
    threat: PixelThreat | None,
    seed: int,
) -> tuple[Tensor, np.ndarray, str]:
    """Confusion (K, K), areas of each pair (N, 3, K) and a hash of the true labels."""
    total = torch.zeros(classes, classes, dtype=torch.int64)
    found, digest = [], hashlib.sha256()
    attacked = replace(sliding, views=(View(),))

    def whole(images: Tensor) -> Tensor:
        return attacked.logits(model, images)

    for batch in pairs:
        for images, masks, indices in _parts(batch, sliding):
            shown = threatened(threat, whole, images, masks, seed=seed, indices=indices)
            matrices = confusion(masks, sliding.labels(model, shown), classes)
            total += matrices.sum(0).cpu()
            found.append(areas(matrices))
            digest.update(masks.cpu().numpy().tobytes())
    if not found:
        raise InputError("no pair could be read; nothing to score")
    per_pair = np.concatenate(found)
    digest.update(str(len(per_pair)).encode())
    return total, per_pair, digest.hexdigest()[:16]


def _parts(
    batch: tuple[Tensor, Tensor, list[int]], sliding: Sliding
) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
    """Parts whose windows fit into one pass (or single images): logits of a part, and an attack's
    graph of it, are kept whole."""
    images, masks, indices = batch
    step = max(1, sliding.max_windows // sliding.count(images.shape[-2], images.shape[-1]))
    for start in range(0, len(indices), step):
        part = slice(start, start + step)
        yield images[part], masks[part], indices[part]


def _check_classes(run: Path, info: Mapping[str, Any], source: SegmentSource) -> None:
    if list(source.classes) != info["classes"]:
        raise InputError(
            f"run {run} knows {len(info['classes'])} classes ({_some(info['classes'])}), the data "
            f"has {len(source.classes)} ({_some(source.classes)})"
        )


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _row(threat: PixelThreat | None) -> str:
    if threat is None:
        return "clean"
    if isinstance(threat, Corruption):
        return f"corruption/{threat.name}/{threat.severity}"
    return type(threat).__name__.lower()


def _text(gains: object) -> str | None:
    return None if gains is None else str(gains)
