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


SAVING = """
import os, time
from pathlib import Path
from pidformer.reproduce.workers import in_processes

HERE = Path(__file__).parent

def save():
    try:
        (HERE / f"{os.getpid()}.begun").touch()
        time.sleep(90)
    finally:
        (HERE / f"{os.getpid()}.told").write_text(str(time.time()))
        time.sleep(3)

def main():
    for _ in in_processes(save, 2):
        if len(list(HERE.glob("*.begun"))) == 2:
            break
"""


@pytest.mark.slow
def test_processes_are_told_to_end_at_the_same_time(tmp_path):
    """One by one, the second went on with the job that the first had let go of."""
    (tmp_path / "own_work.py").write_text(SAVING)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import own_work; own_work.main()"
    assert Process(code, tmp_path).wait(120) == 0
    first, second = sorted(float(path.read_text()) for path in tmp_path.glob("*.told"))
    assert second - first < 2
