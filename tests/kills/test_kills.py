"""Commands that write, disturbed in every way, end as undisturbed ones: a sample for each.

`make kill` tries each command at all its writes.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from PIL import Image

from pidformer.cli import app
from tests.kills.child import start
from tests.kills.commands import COMMANDS
from tests.kills.places import complaints, content, differences, read_only

ROOT = Path(__file__).parents[2]
CHECK = ["data", "check", "photos", "--out", "sheet.png"]
"""A command that computes nothing: these tests fork a process in which others have run."""
READS = {"recipes", "generate", "bench", "lab", "demo"}
"""Write nothing, or (lab, demo) what train, reproduce and report do, by the same functions."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    ["train|segment|reproduce|stability|data", "evalu|analy|tune|convert|export|publish|report"],
)
def test_commands_that_are_disturbed_end_as_undisturbed_ones(part):
    """A full disk, a read-only folder, two kills and then two at once, in the same folder."""
    command = [sys.executable, "-m", "tests.kills", "--sample", "--only", part]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_is_killed():
    commands: dict = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {command.line.split()[0] for command in COMMANDS} | READS == set(commands)


@pytest.fixture
def place(tmp_path):
    """Makes folders with photographs to check."""

    def make(name):
        for split in ("train", "val"):
            (tmp_path / name / "photos" / split / "dark").mkdir(parents=True)
            for number in range(2):
                picture = tmp_path / name / "photos" / split / "dark" / f"{number}.png"
                Image.new("RGB", (8, 8)).save(picture)
        return tmp_path / name

    return make


def new_in(place):
    return [path.name for path in place.iterdir() if path.name != "photos"]


@pytest.mark.slow
def test_the_tests_kill_at_each_write_and_see_what_is_left(place):
    """The method itself: what is left of a file is found, and told from a whole one."""
    whole = place("whole")
    ended = start(CHECK, whole).wait()
    assert ended.code == 0 and ended.changes > 3 and new_in(whole) == ["sheet.png"]
    seen = []
    for number in range(1, ended.changes + 1):
        each = place(f"killed-{number}")
        assert start(CHECK, each, at=number).wait().code == -9
        seen += [differences(content(each), content(whole))]
        assert start(CHECK, each).wait().code == 0
        assert differences(content(each), content(whole)) == []
    assert seen[0] == ["missing: sheet.png"]  # nothing was there yet
    left_over, missing = next(each for each in seen if len(each) == 2)
    assert left_over.startswith("left over: .sheet.") and missing == "missing: sheet.png"


@pytest.mark.slow
def test_the_tests_have_full_disks_and_folders_that_root_cannot_write(place):
    here = place("here")
    full = start(CHECK, here, at=2, act="full").wait()
    assert complaints(full) == [] and "No space left on device" in full.said
    limited = start(CHECK, here, most=100).wait()
    assert complaints(limited) == [] and "File too large" in limited.said
    with read_only(here):
        refused = start(CHECK, here, obeys=True).wait()
    assert complaints(refused) == [] and "Permission denied" in refused.said
    assert new_in(here) == []
