"""Chromium for the tests that need a browser: found, or else installed, once a test run.

PIDFORMER_CHROMIUM names the program, or is "none" to do without; unset, it is looked for on the
PATH and among playwright's own. If it is nowhere, one process of the run tries to install it.
"""

import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS = 180
"""For all attempts to install it together."""


def find():
    """Path of the program, or None."""
    given = os.environ.get("PIDFORMER_CHROMIUM")
    if given is not None:
        return shutil.which(given)
    return next(filter(None, map(shutil.which, NAMES)), None) or _playwrights()


def _playwrights():
    base = os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright"
    return next((str(p) for p in sorted(Path(base).glob("chromium-*/chrome-linux*/chrome"))), None)


def ways():
    """Commands that install it, the first that works is enough."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium"]
        return [install, ["apt-get", "update", "-q"], install]
    return [[sys.executable, "-m", "playwright", "install", "chromium"]]


def install(commands, seconds):
    """Run them until the program is there or time is up; why it is not there, or None."""
    ends, said = time.monotonic() + seconds, "nothing was tried"
    for command in commands:
        said = _try(command, ends - time.monotonic())
        if find():
            return None
    return said


def _try(command, seconds):
    name = " ".join(command)
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
                start_new_session=True,  # with all its children, to end them together
            )
        except OSError as error:
            return f"{name}: {error.strerror}"
        try:
            process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, sign)
                    process.wait(2)
                    break
                except (subprocess.TimeoutExpired, ProcessLookupError):
                    continue
            return f"{name}: not done in time"
        output.seek(0)
        lines = output.read().decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f"{name}: exit code {process.returncode}: {last.strip()[:200]}"


def once(folder, work, seconds):
    """`work()` of the first process that comes; the others wait for its answer, not for ever."""
    ends = time.monotonic() + seconds
    with (folder / "lock").open("a+") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > ends:
                    return "another process is still installing it"
                time.sleep(0.2)
        answer = folder / "answer.json"
        if not answer.exists():
            answer.write_text(json.dumps(work()))
        return json.loads(answer.read_text())


@functools.cache
def ready():
    """(path, "") or (None, why there is none)."""
    found = find()
    if found or os.environ.get("PIDFORMER_CHROMIUM") is not None:
        return found, "" if found else "PIDFORMER_CHROMIUM names no program"
    name = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"process-{os.getpid()}"
    folder = Path(tempfile.gettempdir()) / f"pidformer-chromium-{os.geteuid()}-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    why = once(folder, lambda: install(ways(), SECONDS), SECONDS + 20)
    return find(), f"chromium is not there and could not be installed ({why})"


def needed():
    """The path; skips the test, with the reason, if there is none."""
    path, why = ready()
    if path is None:
        pytest.skip(why)
    return path
