"""A recipe that trains in a second or two, with everything random switched on; its runs."""

from pathlib import Path

import torch

from pidformer import results
from pidformer.runs.folder import load_weights
from pidformer.training import Recipe, load_recipe
from pidformer.training.loop import Trainer

OPTIONS = "{patch_size: 4, embed_dim: 16, depth: 2, num_heads: 2, mlp_ratio: 2}"


def tiny_recipe(*overrides: str) -> Recipe:
    return load_recipe(
        "digits/pid.yaml",
        [
            f"model.options={OPTIONS}",
            "model.options.drop_path_rate=0.2",
            "augment={crop: padded, padding: 1, flip: 0.5, erase: 0.25, mixup: 0.8, cutmix: 1.0}",
            "schedule.epochs=3",
            "schedule.warmup_epochs=1",
            "data.batch_size=128",
            "train.ema=0.9",
            "train.checkpoint_steps=4",
            "train.log_steps=5",
            "train.evaluate_every=1",
            *overrides,
        ],
    )


def same_weights(a: Path, b: Path) -> bool:
    for name in ("model", "ema"):
        left, right = (load_weights(run / f"{name}.safetensors") for run in (a, b))
        if not all(torch.equal(left[key], right[key]) for key in left):
            return False
    return True


def losses(run: Path) -> list[float]:
    return [r.metrics["loss"] for r in results.read(run) if r.kind == "train"]


def controls(run: Path) -> list[float]:
    return [r.metrics["ratio"] for r in results.read(run) if r.kind == "control"]


def stop_after(monkeypatch, steps: int) -> None:
    """Break the training after so many steps, as a crash would."""
    inner = Trainer._save_or_stop

    def crash(self, at_end=False):
        inner(self, at_end)
        if self.step == steps:
            raise RuntimeError("crash")

    monkeypatch.setattr(Trainer, "_save_or_stop", crash)
