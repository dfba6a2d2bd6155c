"""Where a process stands, and what loaders are told of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from pidformer.training.recipe import Recipe


class Place(NamedTuple):
    """Where a process stands."""

    rank: int
    world_size: int
    device: torch.device


def loading(recipe: Recipe, place: Place) -> dict[str, Any]:
    """What every loader of images or pairs is told: where it stands, and how it reads."""
    return {
        **place._asdict(),
        "num_workers": recipe.data.workers,
        "corrupt_limit": recipe.data.corrupt_limit,
    }
