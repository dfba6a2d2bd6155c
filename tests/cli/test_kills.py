"""Commands that are killed at random moments end, run again, as undisturbed ones."""

import json
import subprocess
import sys

import pytest

from pidformer.training.run import train
from tests.training.tiny import tiny_recipe

pytestmark = pytest.mark.slow


def test_commands_that_are_killed_end_as_undisturbed_ones(tmp_path):
    run = tmp_path / "run"
    train(tiny_recipe("schedule.epochs=1"), run, device="cpu", is_shown=False)
    command = [sys.executable, "-m", "tests.cli.kill", str(run), str(tmp_path), "4", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for name, said in json.loads(done.stdout).items():
        assert said == {"same": True, "left": []}, name
