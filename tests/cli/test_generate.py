import subprocess
import sys
from pathlib import Path

import pytest

import pidformer

RUN = Path(pidformer.__file__).parent / "lab" / "examples" / "novels-pid"


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [5, 200])
def test_what_is_said_of_a_long_text_is_said_before_it(tokens):
    """In a process of its own: transformers says it once."""
    line = ["generate", str(RUN), "--prompt", "It was", "--max-tokens", str(tokens)]
    command = [sys.executable, "-m", "pidformer", *line, "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("It was") and len(done.stdout) > 10
    said = "pidformer: warning: the model was trained on 128 tokens at a time, and may write worse"
    assert done.stderr.startswith(said) if tokens > 128 else not done.stderr
    assert done.stderr.count("\n") <= 1
