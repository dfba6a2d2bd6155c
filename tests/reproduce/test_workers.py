"""Processes that work side by side."""

import pytest

from tests.processes import Process

MODULE = """
import atexit, time
from pidformer.reproduce.workers import in_processes

def slow():
    atexit.register(time.sleep, 90)
    return 7

def main():
    print([answer for answer in in_processes(slow, 1) if answer is not None])
"""


@pytest.mark.slow
def test_a_process_that_has_answered_is_ended_without_a_word(tmp_path):
    (tmp_path / "own_work.py").write_text(MODULE)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import own_work; own_work.main()"
    process = Process(code, tmp_path)
    assert process.wait(60) == 0
    assert (process.stdout, process.stderr) == ("[7]\n", "")
