import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_processes_train_converted_models_like_one():
    """DDP and FSDP, a timm ViT and a Llama, with checkpointing and learned gains."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.convert.parallel"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    ddp, fsdp = (json.loads(line) for line in done.stdout.splitlines())
    for found, sharded in ((ddp["ddp"], 0), (fsdp["fsdp"], 4)):  # three layers, and the whole
        assert found.keys() == {"vit", "llama"}
        for model in found.values():
            assert model["difference"] < 1e-5 < model["gains moved"]
            assert model["sharded"] == sharded
