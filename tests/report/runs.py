"""Run folders without training: small models with weights as they were drawn."""

from pathlib import Path

import timm
import torch

from pidformer.runs.folder import save_weights, write_model_info, write_recipe
from pidformer.training import load_recipe
from pidformer.training.tasks import Classification

OPTIONS = "{patch_size: 4, embed_dim: 16, depth: 3, num_heads: 2, mlp_ratio: 2, init_std: 0.3}"


def make_run(folder: Path, gains: str | None, *overrides: str) -> Path:
    torch.manual_seed(0)
    given = [f"model.options={OPTIONS}", f"model.gains={gains or 'null'}", *overrides]
    recipe = load_recipe("digits/pid.yaml", given)
    task = Classification(recipe, None)
    folder.mkdir(parents=True)
    write_recipe(folder, recipe.to_dict())
    write_model_info(folder, task.model_info())
    save_weights(folder / "model.safetensors", task.build().state_dict())
    return folder


def small_vit(gains: str | None = None, **options):
    torch.manual_seed(0)
    size = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "num_heads": 2}
    size |= {"depth": 3, "init_std": 0.3}
    return timm.create_model("pid_deit_tiny_patch16_224", gains=gains, **size | options).eval()
