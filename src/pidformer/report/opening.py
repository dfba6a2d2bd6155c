"""Run folders as subjects of an analysis: the model, and what a record says of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pidformer.checkpoint import load, read_recipe


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A classifier of pixels in [0, 1], and what a record says of it."""

    name: str
    label: str
    model: nn.Module
    image_size: int
    crop_ratio: float = 1.0
    data: str | None = None
    folder: Path | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def open_subject(text: str | Path) -> Subject:
    """The model of a run folder, in evaluation mode."""
    run = Path(text)
    recipe = read_recipe(run)
    model = load(run)
    info = json.loads((run / "model.json").read_text())
    shared = {key: value for key, value in recipe.items() if key != "seed"}
    shared["model"] = {key: v for key, v in recipe["model"].items() if key != "gains"}
    gains = getattr(model.model, "gains", None)
    return Subject(
        name=str(run),
        label=run.resolve().name,
        model=model,
        image_size=info["build"]["image_size"],
        crop_ratio=recipe["data"]["crop_ratio"],
        data=recipe["data"]["name"],
        folder=run,
        facts={
            "weights": _fingerprint(model),
            "gains": None if gains is None else str(gains),
            "train_seed": recipe["seed"],
            "recipe": _hash(json.dumps(shared, sort_keys=True).encode()),
        },
    )


def _fingerprint(model: nn.Module) -> str:
    """16 hex digits of the weights: equal for equal names, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]
