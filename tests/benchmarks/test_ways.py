"""Ways to compile a step, run beside each other: what is said of each, and what it is told."""

import signal
import subprocess
from types import SimpleNamespace

import pytest
from torch import _inductor

from benchmarks import step, ways


def test_every_way_has_options_that_this_torch_knows():
    known = set(_inductor.list_options())
    for options in ways.WAYS.values():
        assert {option.partition("=")[0] for option in options} <= known


def test_options_are_typed_and_unknown_ones_left_out_aloud(capsys):
    given = ["max_autotune_gemm=true", "max_autotune_gemm_backends=ATEN,TRITON", "no.such=1"]
    expected = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN,TRITON"}
    assert step._known(given) == expected
    assert "no option no.such: left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (0, "a warning\nstep 8.1 ms\n\n| rows |", "step 8.1 ms"),
        (-signal.SIGALRM, "", "not compiled within 60 s"),
        (1, "Traceback\nValueError: no", "failed (1): Traceback / ValueError: no"),
    ],
)
def test_one_that_fails_says_so_and_the_others_go_on(
    code, output, expected, capsys, monkeypatch, tmp_path
):
    def run(command, **_):
        if "coordinate_descent_tuning=true" in command:
            return SimpleNamespace(returncode=code, stdout=output)
        return SimpleNamespace(returncode=0, stdout="step 9.0 ms")

    monkeypatch.setattr(subprocess, "run", run)
    file = tmp_path / "ways.txt"
    arguments = ["ways", "--only", "now,descent", "--limit", "60", "--out", str(file)]
    arguments += ["--at-once", "3"]  # two rounds
    monkeypatch.setattr("sys.argv", arguments)
    ways.main()
    said = capsys.readouterr().out.splitlines()
    assert f"descent, gains none: {expected}" in said and "now, gains none: step 9.0 ms" in said
    assert len(said) == 4 and file.read_text().count("# ") == 4
