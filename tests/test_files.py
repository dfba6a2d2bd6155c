import os
import subprocess
import sys

import pytest

from pidformer.files import locked

HOLD = """
import sys
from pidformer.files import locked
with locked(sys.argv[1]) as file:
    print("held", flush=True)
    sys.stdin.readline()
    file.write(b"theirs ")
"""


@pytest.fixture
def holder(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "file")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_lock_is_refused_while_another_process_holds_it(tmp_path, holder):
    with pytest.raises(BlockingIOError), locked(tmp_path / "file", waits=False):
        raise AssertionError("held twice")
    holder.kill()  # the system lets go of it
    holder.wait()
    with locked(tmp_path / "file", waits=False):
        pass


def test_who_waits_gets_the_file_that_stands_there_afterwards(tmp_path, holder):
    (tmp_path / "other").write_bytes(b"other ")
    os.replace(tmp_path / "other", tmp_path / "file")
    holder.stdin.write("go on\n")
    holder.stdin.flush()
    with locked(tmp_path / "file") as file:
        file.write(b"ours")
    assert (tmp_path / "file").read_bytes() == b"other ours"
