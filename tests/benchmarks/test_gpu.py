"""The one command for a GPU: what ends badly costs no more than itself, and a dry run on a CPU."""

import json
import shlex
import subprocess
import sys
import time

import pytest
import torch

from benchmarks import gpu, paths
from benchmarks.goals import kept
from benchmarks.gpu import Piece, run_pieces
from benchmarks.model import NETWORKS
from pidformer.bench import SECTIONS, model
from pidformer.bench.timing import Workload, rows_of
from pidformer.errors import InputError
from pidformer.ops import gelu
from pidformer.results import append, read

RUN = "timeit -n 1 -r 1"
"""A module of Python's that runs a text once."""
RIGHT = f"{RUN} \"print('measured')\""


def ended(folder):
    return {line["piece"]: line for line in map(json.loads, (folder / "pieces.jsonl").open())}


@pytest.fixture
def pieces(monkeypatch):
    """A crash, a hang, something missing, and one that is right."""
    chosen = {
        "crash": Piece(command=f"{RUN} 'import os; os.abort()'", limit=60),
        "hang": Piece(command=f"{RUN} 'print(1 + 1); import time; time.sleep(600)'", limit=2),
        "missing": Piece(command="pytest", limit=60, needs=("no_such_module",)),
        "on a GPU": Piece(command="timeit", limit=60, dry=None),
        "right": Piece(command=RIGHT, limit=60),
    }
    monkeypatch.setattr(gpu, "PIECES", chosen)
    return chosen


def run_piece(piece, folder, left):
    """How one alone ends."""
    ((_, found),) = run_pieces({"x": piece}, folder, left, is_dry=True)
    return found


def call(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["gpu", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        gpu.main()
    return stopped.value.code


def test_a_test_that_failed_says_why_before_another_ends_the_process(tmp_path):
    (tmp_path / "test_made.py").write_text(
        "import os\ndef test_one():\n    assert 1 + 1 == 3\ndef test_two():\n    os.abort()\n"
    )
    command = [sys.executable, "-m", *gpu.PYTEST.split(), str(tmp_path / "test_made.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=gpu.ROOT)
    assert done.returncode < 0 and "assert (1 + 1) == 3" in done.stdout


def test_a_crash_and_a_hang_cost_one_piece_each(pieces, monkeypatch, tmp_path, capsys):
    assert call(monkeypatch, "--out", tmp_path, "--dry") == 2  # pieces that went wrong
    found = ended(tmp_path)
    states = {name: line["state"] for name, line in found.items()}
    assert states == {
        "crash": "failed",
        "hang": "stopped",
        "missing": "left out",
        "on a GPU": "left out",
        "right": "done",
    }
    assert found["hang"]["seconds"] < 30 and "no_such_module" in found["missing"]["why"]
    out = capsys.readouterr().out
    assert "measured" in out and "measured" in (tmp_path / "right.txt").read_text()
    assert "| hang | stopped in" in out and (tmp_path / "hang.txt").read_text() == "2\n"


def test_a_second_call_goes_on_and_a_named_piece_is_run_again(pieces, monkeypatch, tmp_path):
    del pieces["hang"], pieces["crash"]
    for expected in (3, 5):  # what was left out is asked again, what is done is not
        assert call(monkeypatch, "--out", tmp_path, "--dry") == 0
        assert len((tmp_path / "pieces.jsonl").read_text().splitlines()) == expected
    call(monkeypatch, "--out", tmp_path, "--dry", "right")
    assert len((tmp_path / "pieces.jsonl").read_text().splitlines()) == 6


def test_no_piece_begins_that_has_no_time(tmp_path):
    piece = Piece(command=RIGHT, limit=60)
    assert run_piece(piece, tmp_path, 29.0)["state"] == "left out"
    assert not (tmp_path / "x.txt").exists()
    assert run_piece(piece, tmp_path, 31.0)["state"] == "done"


def test_the_seconds_of_all_sections_are_added_once_they_are_there(tmp_path, capsys):
    names = [name for name in gpu.PIECES if name.startswith("bench-")]
    lines = [{"piece": name, "state": "done", "seconds": 80} for name in names]
    for count in (len(lines) - 1, len(lines)):
        (tmp_path / "pieces.jsonl").write_text("\n".join(map(json.dumps, lines[:count])) + "\n")
        assert gpu.summary(tmp_path) == 0
        expected = f"all of `pidformer bench`: {80 * count} s, goal 480 s or less"
        assert (expected in capsys.readouterr().out) == (count == len(lines))


def test_what_hangs_is_ended_with_its_children(tmp_path):
    """A child that outlives its piece would hold the device."""
    marker = tmp_path / "child"
    code = f"import time; time.sleep(4); open({str(marker)!r}, 'w')"
    run = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', {code!r}])"
    piece = Piece(command=f"{RUN} {shlex.quote(run)}", limit=2)
    assert run_piece(piece, tmp_path, 60.0)["state"] == "stopped"
    time.sleep(4)
    assert not marker.exists()


def test_unknown_pieces_and_a_missing_gpu_are_one_line(monkeypatch, tmp_path):
    if not torch.cuda.is_available():
        assert "--dry" in call(monkeypatch, "--out", tmp_path)
    monkeypatch.setattr("sys.argv", ["gpu", "--out", str(tmp_path), "--dry", "chek-1"])
    with pytest.raises(InputError, match="did you mean 'check-1'"):
        gpu.main()


def test_every_path_section_and_test_has_a_piece():
    assert set(paths.PATHS) < set(gpu.PIECES)
    models = {f"bench-model-{name}" for name in NETWORKS}
    others = {f"bench-{name}" for name in SECTIONS if name != "model"}
    assert {name for name in gpu.PIECES if name.startswith("bench-")} == models | others
    words = " ".join(" ".join(piece.words(gpu.ROOT, is_dry=False)) for piece in gpu.PIECES.values())
    tests = gpu.ROOT / "tests"
    for path in tests.rglob("test_*.py"):
        if gpu.MARK in path.read_text() and path.parent != tests / "ops":
            assert f"-m gpu {path.relative_to(gpu.ROOT)}" in words
    assert "not slow tests/ops" in words and "check 5/5" in words and "kernels laws" in words


def test_what_is_right_comes_first_and_then_the_goals_and_the_verdicts():
    order = list(gpu.PIECES)
    untimed = [name for name in order if not gpu.PIECES[name].is_timed]
    assert order[: len(untimed)] == untimed and all(x[:5] in ("check", "test-") for x in untimed)
    named = ["bench-model-tiny-graphs", "bench-operator", "bench-train", "prefetch", "long", "ways"]
    assert sorted(named, key=order.index) == named
    assert all(piece.limit / 2 < 9 * 60 for piece in gpu.PIECES.values())  # calls of nine minutes


def test_pieces_without_times_run_beside_each_other(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu, "AT_ONCE", 2)
    meet = "import pathlib, sys, time; here, there = map(pathlib.Path, {!r}); here.touch()\n"
    meet += "while not there.exists(): time.sleep(0.05)\nprint('met')"
    doors = [str(tmp_path / name) for name in "ab"]
    pieces = {
        name: Piece(command=f"{RUN} {shlex.quote(meet.format(each))}", limit=60, is_timed=False)
        for name, each in (("one", doors), ("two", doors[::-1]))
    }
    found = dict(run_pieces(pieces, tmp_path, 60.0, is_dry=True))
    assert {each["state"] for each in found.values()} == {"done"}
    out = capsys.readouterr().out
    assert "one: met\n" in out and "two: met\n" in out
    assert (tmp_path / "one.txt").read_text().startswith("met\n")


def test_only_what_may_end_another_way_is_run_again(pieces, monkeypatch, tmp_path):
    lines = [
        {"piece": "crash", "state": "failed"},
        {"piece": "hang", "state": "stopped", "seconds": 2.2},
        {"piece": "right", "state": "stopped", "seconds": 59.0},
    ]
    (tmp_path / "pieces.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    call(monkeypatch, "--out", tmp_path, "--dry")
    again = [json.loads(line) for line in (tmp_path / "pieces.jsonl").open()][len(lines) :]
    assert [line["piece"] for line in again] == ["missing", "on a GPU", "right"]


def times(*ratios):
    group = Workload(section="paths", what="x", mode="eager")
    rows = []
    for ratio in ratios:
        rows += rows_of(group, {paths.DEFAULT: [1.0], "path": [ratio]})
    return rows


@pytest.mark.parametrize(
    ("problem", "ratios", "expected"),
    [
        ("", (0.7, 1.0), "make default"),
        ("", (0.7, 1.1), "keep"),
        ("", (0.99, 1.01), "delete"),
        ("", (1.3,), "delete"),
        ("other bits", (0.5,), "delete"),
        ("", (), "keep"),
    ],
)
def test_verdicts(problem, ratios, expected):
    found, why = paths.verdict(problem, times(*ratios))
    assert found == expected and (not problem or problem in why)


def test_goals_read_what_was_kept_of_a_gpu(tmp_path):
    group = Workload(
        section="model", what="DeiT-base, training step", mode="compiled",
        sizes={"image": 224, "patch": 16},
    )  # fmt: skip
    for device, seconds in (("NVIDIA H200", 9.0), ("NVIDIA H200", 10.5), ("CPU", 99.0)):
        for row in rows_of(group, {model.TWIN: [10.0], model.PID: [seconds]}):
            append(tmp_path, row.to_record({"device": device}))
    found = {row.label: row for row in kept(tmp_path)}
    assert len(found) == 2 and found[model.PID].ratio == pytest.approx(1.05)
    assert found[model.PID] == rows_of(group, {model.TWIN: [10.0], model.PID: [10.5]})[1]


def test_a_path_that_is_wrong_is_found_out(monkeypatch):
    """The checks see kernels whose numbers are a little off."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert paths.PATHS["gelu"].problem(device) == ""
    real = gelu.gelu_forward
    monkeypatch.setattr(gelu, "gelu_forward", lambda *given: 1.1 * real(*given))
    assert "off float64" in paths.PATHS["gelu"].problem(device)


def test_a_path_that_breaks_down_gets_a_verdict_and_no_times(monkeypatch, tmp_path, capsys):
    def breaks(_):
        raise RuntimeError("no such instruction")

    monkeypatch.setitem(paths.PATHS, "gelu", paths.Path(breaks, lambda _: pytest.fail("measured")))
    monkeypatch.setattr("sys.argv", ["paths", "gelu", "--device", "cpu", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        paths.main()
    assert stopped.value.code == 1
    (line,) = map(json.loads, (tmp_path / "verdicts.jsonl").open())
    assert line["verdict"] == "delete" and "RuntimeError: no such instruction" in line["why"]


@pytest.mark.slow
def test_a_dry_run_goes_through_its_pieces(tmp_path):
    """One piece of each kind; the others are the same commands with other words."""
    named = ["check-1", "check-laws", "test-devices", "ceilings", "bench-model-tiny-graphs"]
    named += ["bench-operator", "direct", "long", "growth", "loop"]
    words = [sys.executable, "-m", "benchmarks", "gpu", "--out", str(tmp_path), "--dry", *named]
    done = subprocess.run([*words, "--minutes", "60"], capture_output=True, text=True, cwd=gpu.ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    states = {name: line["state"] for name, line in ended(tmp_path).items()}
    assert states == dict.fromkeys(named, "done") | {"ceilings": "left out"}
    assert "| direct | none | a CPU cannot say |" in done.stdout and "not measured" in done.stdout
    sections = {row.settings["section"] for row in read(tmp_path)}
    assert {"operator", "paths", "long", "growth"} <= sections
