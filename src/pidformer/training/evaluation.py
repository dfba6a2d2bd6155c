"""Scores of a finished run on its validation set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pidformer import results
from pidformer.checkpoint import load, read_recipe
from pidformer.errors import InputError
from pidformer.training.recipe import recipe_from
from pidformer.training.tasks import Place, build_task


def evaluate_run(
    run: str | Path,
    *,
    data: str | Path | None = None,
    device: str = "auto",
    gains: Any = None,
    ema: bool = False,
) -> dict[str, float]:
    """Clean scores of a run, in per cent with 95 % intervals; also written to its results."""
    run = Path(run)
    recipe = recipe_from(read_recipe(run))
    task = build_task(recipe, data)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load(run, gains=gains, ema=ema).model.to(device)
    expected, found = len(task.model_info()["classes"]), model.num_classes
    if expected != found:
        raise InputError(f"run {run} knows {found} classes, the data at {data} has {expected}")
    with torch.no_grad():
        scores = task.scores(task.count(model, Place(0, 1, torch.device(device))))
    settings = {
        "run": str(run),
        "data": str(data or recipe.data.name),
        "seed": recipe.seed,
        "ema": ema,
        "gains": repr(model.gains),
        "machine": results.machine(),
    }
    results.append(run, results.Record(kind="clean", metrics=scores, settings=settings))
    return scores
