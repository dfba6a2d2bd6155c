"""What the processes of tests/test_ranks.py do: every task, every kind of row."""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from pidformer import ranks
from pidformer.data import EvalImages
from pidformer.evaluation.analysis import analyze
from pidformer.evaluation.images import evaluate_models
from pidformer.evaluation.suite import load_suite
from pidformer.evaluation.tasks import evaluate_other
from pidformer.robustness import Noise
from pidformer.robustness.evaluate import hits_under
from pidformer.tune import Space, tune
from tests.data.sets import memory_set

OPTIONS = {"limit": None, "seed": 0, "gains": None, "ema": False}
OPTIONS |= {"command": "evaluate", "is_shown": False}


def bright(images):
    """Logits that every pixel of the noise moves."""
    part = images.flatten(1).sum(1) * 100 % 1.0
    return torch.stack([part, 1 - part], dim=1)


def measure(root: Path, suite: str, device: str = "cpu") -> None:
    """Everything, from one call after the other."""
    shown = {"device": ranks.join(device), **OPTIONS}
    run = root / "image"
    wanted = shown | {"limit": 21, "batch_size": 4}
    evaluate_models([str(run)], load_suite(suite), **wanted)
    analyze([run], limit=40, spectrum_limit=20, device="cpu", is_shown=False, out=root / "looked")
    space = Space(p=(0.0, 0.3), i=(0.0,), d=(0.0,), beta=(1.0,))
    tune(run, metric="pgd", space=space, limit=30, batch_size=8, device="cpu")
    scenes = {"views": "single", "protocol": "sliding", "split": "valid"}
    rows = ["segmentation", [str(root / "scenes")], "robustness", root.parent / "camvid"]
    evaluate_other(*rows, **scenes, **shown)
    texts = os.environ["TEXTS"]
    for protocol in ("strided", "documents"):
        own = {"protocol": protocol, "split": "valid", "precision": "fp32"}
        evaluate_other("language", [str(root / "text")], "clean", texts, **own, **shown)
    looked = {"rank": ranks.rank(), "world_size": ranks.size(), "resident": False}
    for name, gone in (("whole", ()), ("broken", (2, 9, 10))):  # moves the draws of all after them
        source = memory_set(23, (4, 4), num_classes=2, broken=gone)
        images = EvalImages(source, image_size=4, batch_size=3, corrupt_limit=0.5, **looked)
        hits = hits_under(bright, images, Noise(eps=0.5))[0]
        if ranks.is_main():
            (root / f"{name}.json").write_text(json.dumps(hits.tolist()))


def dies(root: Path, suite: str) -> None:
    """Process 1 ends when the first row is recorded."""
    ranks.join("cpu")
    if ranks.rank() == 1:
        gathered = ranks.gathered

        def kill(value):
            if isinstance(value, tuple) and value[0] and kill.rows == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            kill.rows += isinstance(value, tuple)
            return gathered(value)

        kill.rows = 0
        ranks.gathered = kill
    from pidformer.cli import main

    sys.argv = ["pidformer", "evaluate", str(root / "image"), "--suite", suite, "--limit", "21",
                "--batch-size", "4", "--device", "cpu"]  # fmt: skip
    main()


if __name__ == "__main__":
    {"measure": measure, "dies": dies}[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
