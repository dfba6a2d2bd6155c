"""Optimisers, and which weights they decay."""

from __future__ import annotations

from typing import Any

import torch
from timm.optim import param_groups_weight_decay

from pidformer.runs.recipe import OptimRecipe


def build_optimizer(
    recipe: OptimRecipe, model: Any, lr: float, device: torch.device
) -> torch.optim.Optimizer:
    """AdamW or SGD (Nesterov); vectors, biases, positions and the class token do not decay."""
    exempt = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()
    groups = param_groups_weight_decay(model, recipe.weight_decay, no_weight_decay_list=exempt)
    if recipe.name == "sgd":
        return torch.optim.SGD(
            groups, lr=lr, momentum=recipe.momentum, nesterov=recipe.momentum > 0
        )
    return torch.optim.AdamW(
        groups, lr=lr, betas=recipe.betas, eps=recipe.eps, fused=device.type == "cuda"
    )
