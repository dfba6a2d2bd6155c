"""Processes that work side by side."""

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, time
from pidformer.reproduce.workers import in_processes

def slow():
    atexit.register(time.sleep, 90)
    return 7

if __name__ == "__main__":
    print([answer for answer in in_processes(slow, 1) if answer is not None])
"""


@pytest.mark.slow
def test_a_process_that_has_answered_is_ended_without_a_word(tmp_path):
    path = tmp_path / "work.py"
    path.write_text(SCRIPT)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[7]\n", "")
