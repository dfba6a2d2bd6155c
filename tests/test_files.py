"""Files that are whole or not there, and folders that keep to themselves."""

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from pidformer.errors import InputError
from pidformer.files import (
    atomic_folder,
    atomic_path,
    check_inside,
    check_links,
    is_temporary,
    locked,
    out_folder,
)

HOLD = """
import sys
sys.argv[0] = "pidformer"  # as the command does it: without torch
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


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_weights_have_the_rights_of_other_new_files(tmp_path, mask):
    """safetensors gives a file to its owner alone."""
    before = os.umask(mask)
    try:
        with atomic_path(tmp_path / "a.safetensors") as temporary:
            save_file({"a": torch.ones(1)}, temporary)
        with atomic_folder(tmp_path / "folder") as folder:
            save_file({"a": torch.ones(1)}, folder / "a.safetensors")
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*.safetensors"):
        assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_file_is_replaced_only_when_it_is_whole(tmp_path):
    path = tmp_path / "model.json"
    path.write_text("old")

    def fail():
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            assert temporary.suffix == ".json" and is_temporary(temporary)
            raise OSError("disk is full")

    with pytest.raises(OSError, match="disk"):
        fail()
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_named_before_the_work(tmp_path):
    place = atomic_path(tmp_path / "none" / "a.json")
    with pytest.raises(InputError, match=r"folder .*none does not exist; create it first"):
        place.__enter__()


@pytest.mark.parametrize(
    ("name", "expected"),
    [(".recipe.12-3-0a1b2c3d.part.yaml", True), (".run.9-9-0a1b2c3d.part", True),
     (".run.9-9-0a1b2c3d.part.0-4", True), ("recipe.yaml", False), (".hidden", False),
     (".a.b.yaml", False), (".config.2024", False), (".notes.20240101.txt", False),
     (".download.part", False)],
)  # fmt: skip
def test_what_a_killed_process_leaves_is_known_by_its_name(tmp_path, name, expected):
    assert is_temporary(tmp_path / name) == expected


WRITE = """
import sys
sys.argv[0] = "pidformer"
from pathlib import Path
from pidformer.files import atomic_folder, atomic_path
with atomic_path(Path(sys.argv[1]) / "best.safetensors") as file:
    file.write_text("half")
    with atomic_folder(Path(sys.argv[1]) / "step-1.5") as folder:
        (folder / "state.json").write_text("half")
        print("writing", flush=True)
        sys.stdin.readline()
"""


@pytest.mark.slow
def test_what_killed_processes_were_writing_is_swept_and_that_of_the_living_is_not(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".notes.123.txt").write_text("somebody's own")
    with ExitStack() as stack:
        pair = []
        for _ in range(2):
            command = [sys.executable, "-c", WRITE, str(run)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            pair.append(stack.enter_context(subprocess.Popen(command, **pipes)))
            assert pair[-1].stdout.readline() == "writing\n"
        killed, living = pair
        killed.kill()
        killed.wait()
        assert sum(map(is_temporary, run.iterdir())) == 4
        elsewhere = run / ".model.1-1-00000000.part.json"  # of another machine, just written
        elsewhere.write_text("half")
        out_folder(run)
        held = sorted(path.name for path in run.iterdir())
        theirs = [name for name in held if f".{living.pid}-" in name]
        assert len(theirs) == 2 and held == sorted([".notes.123.txt", elsewhere.name, *theirs])
        living.communicate("go on\n")
    assert (run / "best.safetensors").read_text() == (run / "step-1.5/state.json").read_text()


def test_what_another_machine_left_is_swept_after_a_day(tmp_path):
    left = tmp_path / ".model.1-1-00000000.part.json"
    left.write_text("half")
    os.utime(left, (0, 0))
    with atomic_path(tmp_path / "other.json") as path:
        path.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["other.json"]


def test_a_folder_is_there_only_when_it_is_whole(tmp_path):
    out = tmp_path / "out"

    def fail():
        with atomic_folder(out) as folder:
            (folder / "a").write_text("half")
            assert not out.exists() and is_temporary(folder)
            raise OSError("disk is full")

    with pytest.raises(OSError, match="disk"):
        fail()
    assert list(tmp_path.iterdir()) == []
    out.mkdir()  # an empty one may stand there
    with atomic_folder(out) as folder:
        (folder / "a").write_text("whole")
    assert (out / "a").read_text() == "whole" and list(tmp_path.iterdir()) == [out]
    with pytest.raises(OSError, match="not empty"), atomic_folder(out):
        pass
    assert (out / "a").read_text() == "whole" and list(tmp_path.iterdir()) == [out]


def test_an_out_folder_is_made_and_a_file_is_refused(tmp_path):
    assert out_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=r"is a file; --out|cannot write to"):
            out_folder(path)


def test_links_may_lead_about_inside_a_folder_and_not_out_of_it(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "weights").write_text("")
    (folder / "latest").symlink_to("weights")
    check_links(folder)
    (tmp_path / "secret").write_text("")
    for target in ("../secret", tmp_path / "secret", "/etc"):
        (folder / "out").symlink_to(target)
        with pytest.raises(InputError, match="leads out of its folder"):
            check_links(folder)
        (folder / "out").unlink()
    with pytest.raises(InputError, match="leads out"):
        check_inside(folder / ".." / "secret", folder)


def test_a_pipe_in_a_folder_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        check_links(tmp_path)


def test_the_cache_of_hugging_face_keeps_its_files_beside_its_snapshots(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "1f").write_text("")
    (snapshot / "config.json").symlink_to("../../blobs/1f")
    check_links(snapshot)


@pytest.mark.slow
def test_a_lock_is_refused_while_another_process_holds_it(tmp_path, holder):
    with pytest.raises(BlockingIOError), locked(tmp_path / "file", waits=False):
        raise AssertionError("held twice")
    holder.kill()  # the system lets go of it
    holder.wait()
    with locked(tmp_path / "file", waits=False):
        pass


@pytest.mark.slow
def test_who_waits_gets_the_file_that_stands_there_afterwards(tmp_path, holder):
    (tmp_path / "other").write_bytes(b"other ")
    os.replace(tmp_path / "other", tmp_path / "file")
    holder.stdin.write("go on\n")
    holder.stdin.flush()
    with locked(tmp_path / "file") as file:
        file.write(b"ours")
    assert (tmp_path / "file").read_bytes() == b"other ours"


@pytest.mark.parametrize("whole", [atomic_path, atomic_folder])
def test_what_safetensors_says_of_a_full_disk_is_an_error_of_the_system(tmp_path, whole):
    for said, number, why in (
        ("I/O error: No space left on device (os error 28)", 28, "No space left on device"),
        ("header too large", 5, "header too large"),
    ):
        with pytest.raises(OSError) as caught, whole(tmp_path / "model"):
            raise SafetensorError(said)
        error = caught.value
        found = error.errno, error.strerror, error.filename
        assert found == (number, why, str(tmp_path / "model"))
        assert list(tmp_path.iterdir()) == []
