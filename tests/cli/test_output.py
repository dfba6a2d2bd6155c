"""Where a command's words go: a pipe that is closed early, a place that cannot be written."""

import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "pidformer"]


@pytest.mark.parametrize("words", [["--help"], ["stability"], ["recipes"], ["data", "--help"]])
def test_a_reader_that_leaves_early_is_no_error(words):
    process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()  # as head does once it has its lines
    said = process.stderr.read()
    assert (process.wait(60), said) == (0, b"")


def test_a_group_alone_shows_its_commands():
    found = subprocess.run([*COMMAND, "data"], capture_output=True, text=True)
    assert found.returncode == 0 and found.stderr == ""
    assert "check" in found.stdout and "cache" in found.stdout


@pytest.mark.parametrize(
    "words", [["stability", "--plot", "/proc/mine.png"], ["lab", "--export", "/proc/mine"]]
)
def test_a_place_that_cannot_be_written_goes_by_the_name_that_was_given(words):
    found = subprocess.run([*COMMAND, *words], capture_output=True, text=True)
    assert found.returncode == 2 and found.stdout == ""
    assert found.stderr.startswith("pidformer: /proc/mine") and ".part" not in found.stderr
