"""The set-up of the browser: found, installed once, or given up in time."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import chromium


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """A machine without it."""
    monkeypatch.delenv("PIDFORMER_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    chromium.ready.cache_clear()
    yield tmp_path
    chromium.ready.cache_clear()


def make_program(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_it_is_found_by_variable_path_and_playwright(nowhere, monkeypatch):
    assert chromium.find() is None
    own = make_program(nowhere / "chromium-1200" / "chrome-linux" / "chrome")
    assert chromium.find() == own
    listed = make_program(nowhere / "chromium")
    assert chromium.find() == listed
    monkeypatch.setenv("PIDFORMER_CHROMIUM", own)
    assert chromium.find() == own
    monkeypatch.setenv("PIDFORMER_CHROMIUM", "none")
    assert chromium.find() is None


def test_nothing_is_installed_where_it_is_there_or_not_wanted(nowhere, monkeypatch):
    monkeypatch.setattr(chromium, "ways", lambda: pytest.fail("was asked to install"))
    monkeypatch.setenv("PIDFORMER_CHROMIUM", "none")
    with pytest.raises(pytest.skip.Exception, match="names no program"):
        chromium.needed()
    monkeypatch.delenv("PIDFORMER_CHROMIUM")
    chromium.ready.cache_clear()
    path = make_program(nowhere / "chromium")
    assert chromium.needed() == path


def test_a_way_that_works_ends_the_search(nowhere):
    make = f"import os; os.open({str(nowhere / 'chromium')!r}, os.O_CREAT, 0o755)"
    commands = [[sys.executable, "-c", code] for code in ("1/0", make, "print('not reached')")]
    assert chromium.install(commands, 30) is None
    assert chromium.find()


@pytest.mark.slow
def test_failures_and_delays_end_in_a_reason(nowhere):
    failing = [sys.executable, "-c", "import sys; sys.exit('no such package')"]
    assert chromium.install([["absent"], failing], 30).endswith("exit code 1: no such package")
    assert "No such file" in chromium.install([["absent"]], 30)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, print); time.sleep(60)"
    begun = time.monotonic()
    assert "not done in time" in chromium.install([[sys.executable, "-c", stubborn]], 0.5)
    assert time.monotonic() - begun < 15


def test_tests_are_skipped_with_the_reason(nowhere, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(nowhere))
    monkeypatch.setattr(chromium.tempfile, "tempdir", None)
    monkeypatch.setattr(chromium, "ways", lambda: [["absent"]])
    with pytest.raises(pytest.skip.Exception, match=r"could not be installed \(absent: No such"):
        chromium.needed()


@pytest.mark.slow
def test_of_several_processes_one_works_and_all_know(tmp_path):
    code = (
        "import os, sys, time, pathlib\n"
        "from tests import chromium\n"
        "def work():\n"
        "    time.sleep(0.5)\n"
        "    (pathlib.Path(sys.argv[1]) / f'worked-{os.getpid()}').touch()\n"
        "    return 'told'\n"
        "print(chromium.once(pathlib.Path(sys.argv[1]), work, 30))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    options = {"cwd": Path(__file__).parents[1], "stdout": subprocess.PIPE, "text": True}
    several = [subprocess.Popen(command, **options) for _ in range(3)]
    assert [process.communicate(timeout=60)[0].strip() for process in several] == ["told"] * 3
    assert len(list(tmp_path.glob("worked-*"))) == 1
