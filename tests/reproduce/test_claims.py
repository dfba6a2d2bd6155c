"""A job has one holder, and none once its process has ended."""

import os
import signal

import pytest

from pidformer.reproduce.claims import claimed, holder
from tests.processes import Process

HOLD = """
import sys, time
from pathlib import Path
from pidformer.reproduce.claims import claimed
with claimed(Path(sys.argv[1]), "job") as is_ours:
    print(is_ours, flush=True)
    time.sleep(600 if is_ours else 0)
"""


def test_only_one_holds_a_job_and_lets_go(tmp_path):
    assert holder(tmp_path, "job") is None
    with claimed(tmp_path, "job") as is_ours:
        assert is_ours and holder(tmp_path, "job").endswith(f", {os.getpid()}")
        with claimed(tmp_path, "job") as is_theirs, claimed(tmp_path, "other") as is_free:
            assert not is_theirs and is_free
        assert holder(tmp_path, "job") is not None
    assert holder(tmp_path, "job") is None and not any(tmp_path.iterdir())


def test_what_raises_lets_go_too(tmp_path):
    with pytest.raises(KeyError), claimed(tmp_path, "job"):
        raise KeyError
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_of_many_processes_one_holds_a_job_and_a_killed_one_lets_go(tmp_path):
    many = [Process(HOLD, tmp_path) for _ in range(4)]
    first = None
    while first is None or sum(process.poll() == 0 for process in many) < 3:
        first = next((process for process in many if process.stdout == "True\n"), first)
    assert [process.stdout for process in many].count("False\n") == 3
    assert holder(tmp_path, "job").endswith(f", {first.pid}")
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert holder(tmp_path, "job") is None
    with claimed(tmp_path, "job") as is_ours:
        assert is_ours
