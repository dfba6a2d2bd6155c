import io
import re

import pytest

from pidformer.display import Display, advancing, counted
from pidformer.evaluation.progress import EvaluationProgress
from pidformer.results import Record


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.stderr", screen := Terminal())
    return screen


RECORD = Record(kind="robustness", metrics={"top1": 50.0}, settings={})


def test_an_evaluation_shows_the_time_left_on_a_terminal(monkeypatch):
    terminal = on_terminal(monkeypatch)
    now = [0.0]
    with EvaluationProgress("pid", 4) as shown:
        shown.bars.get_time = lambda: now[0]
        for task in shown.bars.tasks:
            task._get_time = shown.bars.get_time
            task.start_time = 0.0
        for row in ("old", "new"):
            watch = shown.begin(row, 10)
            for done in range(1, 11):
                now[0] += 0.0 if row == "old" else 6.0
                watch(done)
            shown.done(row, RECORD, is_old=row == "old")
        left = shown.bars.tasks[0].time_remaining
    assert left == pytest.approx(120, rel=0.15)  # two rows of a minute each
    assert "left" in terminal.getvalue() and "pid  new: top-1 50.00 %" in terminal.getvalue()


def test_a_pipe_gets_lines_alone(capsys):
    with EvaluationProgress("pid", 2) as shown:
        shown.begin("clean", 10)(10)
        shown.done("clean", RECORD, is_old=False)
        shown.done("pgd", RECORD, is_old=True)
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"pid  clean: top-1 50\.00 %, 0\.\d s", lines[0])
    assert lines[1:] == ["pid  pgd: top-1 50.00 %, already there"]


def test_nothing_is_written_where_nothing_is_to_be_shown(monkeypatch):
    terminal = on_terminal(monkeypatch)
    with Display(is_shown=False) as display:
        display.bars.advance(display.bar("work", 3))
        display.say("a line")
    with advancing("work", 3, is_shown=False) as advance:
        advance(2)
    assert list(counted("abc", "letters", 3, is_shown=False)) == ["a", "b", "c"]
    assert terminal.getvalue() == ""


def test_labels_are_no_markup(capsys):
    with Display() as display:
        display.say("run [red]: done")
    assert capsys.readouterr().err == "run [red]: done\n"
