"""Run folders measured by the real evaluators; weights as they were drawn, nothing is trained."""

from __future__ import annotations

from pathlib import Path

import torch

from pidformer import results
from pidformer.evaluation import evaluate_segmentation
from pidformer.evaluation.images import run_suite
from pidformer.evaluation.setup import Setup
from pidformer.evaluation.suite import load_suite
from pidformer.results import Record
from pidformer.robustness import FGSM
from pidformer.runs.folder import save_weights, write_model_info, write_recipe
from pidformer.runs.open import open_subject
from pidformer.training.run import build_task
from tests.training.test_segmentation import recipe as segmenter
from tests.training.tiny import tiny_recipe

GAINS = {"softmax": "null", "pid": "0.4,0.1,0.05,1"}
SUITE = """
rows:
  - clean
  - fgsm: {eps: 0.05}
  - corruptions: {names: [fog, contrast], severities: [1, 3]}
"""


def fresh_run(folder: Path, recipe, data=None) -> Path:
    """A folder as training leaves it, with a log of two lines."""
    task = build_task(recipe, data)
    folder.mkdir(parents=True)
    write_recipe(folder, recipe.to_dict())
    write_model_info(folder, task.model_info())
    torch.manual_seed(recipe.seed)
    save_weights(folder / "model.safetensors", task.build().state_dict())
    for step in (5, 10):
        log = {"loss": 2.0, "images_per_second": 100.0, "tokens_per_second": 100.0, "epoch": step}
        settings = {"seed": recipe.seed}
        results.append(folder, Record(kind="train", metrics=log, step=step, settings=settings))
    score = {"top1": 40.0, "miou": 20.0, "ppl": 30.0}
    results.append(folder, Record(kind="evaluate", metrics=score, step=10))
    return folder


def classifiers(root: Path, seeds=(0, 1), variants=GAINS, overrides=()) -> list[Path]:
    suite = root / "tiny.yaml"
    root.mkdir(parents=True, exist_ok=True)
    suite.write_text(SUITE)
    found = []
    for name, gains in variants.items():
        for seed in seeds:
            given = (
                f"model.gains={gains}",
                f"seed={seed}",
                "train.ema=null",
                "model.options.init_std=0.3",
                *overrides,
            )
            run = fresh_run(root / f"{name}-seed{seed}", tiny_recipe(*given))
            setup = Setup(
                subject=open_subject(run), location="digits", device=torch.device("cpu"), limit=40
            )
            run_suite(setup, load_suite(suite), is_shown=False)
            found.append(run)
    return found


def segmenters(root: Path, data: Path, seeds=(0, 1)) -> list[Path]:
    found = []
    for name, gains in GAINS.items():
        for seed in seeds:
            recipe = segmenter(f"model.gains={gains}", f"seed={seed}")
            run = fresh_run(root / f"camvid-{name}-seed{seed}", recipe, data)
            for more in ({}, {"views": "multi"}, {"threat": FGSM(eps=1 / 255)}):
                evaluate_segmentation(run, data=data, device="cpu", **more)
            found.append(run)
    return found
