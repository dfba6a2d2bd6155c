"""Run folders with records that say what a test wants them to say; nothing is trained."""

from __future__ import annotations

import numpy as np
import yaml

from pidformer import results
from pidformer.results import Record
from pidformer.runs.folder import write_recipe
from pidformer.statistics import pack, percentage
from pidformer.training import load_recipe

IMAGES = 40
MACHINE = {"cpu": "x86_64", "cores": 2, "python": "3.11.0", "torch": "2.15.0"}


def hits(share: float, seed: int) -> np.ndarray:
    order = np.random.default_rng(seed).permutation(IMAGES)
    return order < round(share * IMAGES)


def write_run(folder, model="pid", seed=0, rows=None, overrides=(), data_hash="d" * 16, **more):
    """A run of digits/MODEL.yaml: training log, and a robustness record for each row's share."""
    recipe = load_recipe(f"digits/{model}.yaml", [f"seed={seed}", *overrides]).to_dict()
    folder.mkdir(parents=True)
    write_recipe(folder, recipe)
    for epoch in (1, 2):
        log = {"loss": 2.0 / epoch, "images_per_second": 100.0, "epoch": float(epoch)}
        results.append(folder, Record(kind="train", metrics=log, step=10 * epoch))
        score = {"top1": 40.0 * epoch, "top5": 99.0}
        results.append(folder, Record(kind="evaluate", metrics=score, step=10 * epoch))
    for row, share in (rows or {}).items():
        results.append(folder, robustness(folder, row, share, seed, data_hash, **more))
    return folder


def robustness(folder, row, share, seed=0, data_hash="d" * 16, threat=None, eps=None, **more):
    right = hits(share, seed + len(row))
    about = {
        "weights": "w" * 16,
        "gains": _gains(folder),
        "train_seed": seed,
        "recipe": "as evaluated",
        "ema": False,
        "model": str(folder),
        "label": folder.name,
        "data": "digits",
        "data_hash": data_hash,
        "suite": "digits",
        "row": row,
        "threat": threat or ("None" if row == "clean" else f"{row.upper()}(eps=0.05)"),
        "domain": "pixel",
        "eps": eps,
        "seed": 0,
        "limit": None,
        "machine": MACHINE,
        "command": f"pidformer evaluate {folder} --suite digits",
    }
    metrics = percentage("top1", int(right.sum()), IMAGES)
    metrics |= {"images": float(IMAGES), "seconds": 1.5}
    details = {"right": pack(right)}
    return Record(kind="robustness", metrics=metrics, settings=about | more, details=details)


def analysis(folder, values, min_real=-0.2, what=("token_similarity", "spectrum", "certificate")):
    about = {
        "weights": "w" * 16,
        "gains": _gains(folder),
        "model": str(folder),
        "label": folder.name,
        "data": "digits",
        "data_hash": "a" * 16,
        "limit": 1000,
        "seed": 0,
        "machine": MACHINE,
        "command": f"pidformer analyze {folder}",
    }
    metrics = {
        "token_similarity": {f"similarity_layer_{k}": v for k, v in enumerate(values, 1)}
        | {"effective_rank_last": 10 * values[-1]},
        "spectrum": {"min_real": min_real, "max_imag": 0.3},
        "certificate": {"worst_radius": 0.9, "share_outside": 0.02},
    }
    for name in what:
        details = {"verdict": "the gains hold"} if name == "certificate" else {}
        settings = about | {"what": name}
        record = Record(kind="analysis", metrics=metrics[name], settings=settings, details=details)
        results.append(folder, record)


def _gains(folder):
    given = yaml.safe_load((folder / "recipe.yaml").read_text())["model"]["gains"]
    return None if given is None else "PIDGains(p=0.6, i=0.1, d=0.05, beta=1.0)"


def twins(root, seeds=2, rows=("clean", "fgsm", "fgsm@8/255", "fgsm@16/255")):
    """softmax and PID with known accuracies."""
    for seed in range(seeds):
        for model, gap in (("softmax", 0.0), ("pid", 0.1)):
            folder = write_run(root / f"{model}-seed{seed}", model, seed)
            for place, row in enumerate(rows):
                share = 0.5 + gap + 0.05 * seed - 0.1 * place
                eps = float(row.partition("@")[2].partition("/")[0]) / 255 if "@" in row else None
                results.append(folder, robustness(folder, row, share, seed, eps=eps))
            analysis(folder, [0.1, 0.2 + 0.1 * seed, 0.4 - gap])
    return root
