"""One case in a process of its own, and the verdict on how it ended.

The process is a fork of one that has imported everything: a case costs a tenth of a second. Long
work that has been begun is stopped there, and counts as accepted.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from PIL import Image
from safetensors import safe_open

from pidformer.cli import main
from pidformer.files import is_temporary
from tests.fuzz.cases import Case

SECONDS = 20
"""Of CPU time, as a machine may be busy; a process that only waits has six times as long."""
MEGABYTES = 2000
"""Above what the process had when it began."""
LINE = 300
STEPS = 10**9
"""The most that a run may be begun with."""
HERE = ("127.0.0.1", "localhost", "::1", None, "")
BEGUN, CONNECTED, ENDLESS = 90, 91, 92
"""Exit codes of a case that was accepted, that asked for a connection, and that would not end."""
VERDICTS = (
    "refused", "accepted", "traceback", "hang", "endless", "connection", "memory", "unclear",
    "overlong", "leftovers", "invalid",
)  # fmt: skip
GOOD = ("refused", "accepted")


@dataclass(frozen=True)
class Outcome:
    case: Case
    code: int
    """Minus the signal that ended it, as in subprocess."""
    out: str
    err: str
    seconds: float
    megabytes: float
    changed: tuple[str, ...]

    rewritten: tuple[str, ...]
    """Those of them that were there before, and still are."""
    invalid: tuple[str, ...]
    """Files that were written and cannot be read."""

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if self.code in (-signal.SIGALRM, -signal.SIGPROF):
            return "hang"
        if self.code in (CONNECTED, ENDLESS):
            return "connection" if self.code == CONNECTED else "endless"
        if self.megabytes > MEGABYTES:
            return "memory"
        if "Traceback" in self.err or self.code not in (0, 1, 2, BEGUN):
            return "traceback"
        if self.code != 2:
            is_told = self.code != 1 or bool(self.out.strip())  # `data check` found damage
            return "invalid" if self.invalid else "accepted" if is_told else "unclear"
        lines = [x for x in self.err.splitlines() if not x.startswith("pidformer: warning:")]
        if len(lines) != 1 or not lines[0].startswith("pidformer: ") or self.out:
            return "unclear"
        if len(lines[0]) > LINE:
            return "overlong"
        is_clean = set(self.changed) <= set(self.rewritten) and not self.invalid
        return "refused" if is_clean else "leftovers"


def _files(folder: Path) -> dict[str, bytes]:
    """What the files hold; a lock file holds nothing, and a cache may grow."""
    found = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    return {
        name: path.read_bytes()
        for name, path in found.items()
        if not name.endswith(".lock") and not name.startswith("cache/")
    }


def _is_valid(path: Path, code: int) -> bool:
    """Whether a file that a command wrote can be read; begun work may hold a temporary name."""
    if is_temporary(path):
        return code == BEGUN
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as held:
                return bool(held.keys())
        if path.suffix == ".png":
            with Image.open(path) as image:
                image.load()
        text = path.read_bytes()
        if path.suffix in (".json", ".jsonl"):
            for line in text.splitlines() if path.suffix == ".jsonl" else (text,):
                json.loads(line)
        elif path.suffix == ".yaml":
            yaml.safe_load(text)
        return bool(text)
    except Exception:  # whatever a reader says
        return False


def _stop(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _no_long_work() -> None:
    """Where real work begins, the process ends; so it does where it asks for another machine."""
    from matplotlib.figure import Figure

    from pidformer import ledger
    from pidformer.bench import timing
    from pidformer.lab.server import Lab
    from pidformer.reproduce import run as reproduce
    from pidformer.training.loop import Trainer

    def begun(*_: Any, **__: Any) -> NoReturn:
        _stop(BEGUN)

    train_step = Trainer._train_step

    def train(self: Trainer, *given: Any) -> NoReturn:
        train_step(self, *given)
        _stop(BEGUN if self.last_step <= STEPS else ENDLESS)

    connect, find = socket.socket.connect, socket.getaddrinfo

    def connect_here(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in HERE:
            _stop(CONNECTED)
        connect(self, address)

    def find_here(host: Any, *rest: Any, **options: Any) -> Any:
        if host not in HERE and options.get("flags", 0) & socket.AI_NUMERICHOST == 0:
            _stop(CONNECTED)
        return find(host, *rest, **options)

    def draw(self: Figure, to: Any, **_: Any) -> None:
        if hasattr(to, "write"):
            to.write("<svg/>")
        elif str(to).endswith(".svg"):
            Path(to).write_text("<svg/>")
        else:
            Image.new("RGB", (1, 1)).save(to)

    Figure.savefig = draw  # type: ignore[assignment]
    torch.export.export = begun
    Trainer._train_step = train  # type: ignore[method-assign]
    ledger.Ledger.add = begun  # type: ignore[method-assign]
    Lab.wait = begun  # type: ignore[method-assign]
    timing.seconds = begun
    reproduce.do = reproduce.in_processes = begun
    socket.socket.connect = connect_here  # type: ignore[method-assign]
    socket.getaddrinfo = find_here


def run(case: Case, sandbox: Path) -> Outcome:
    """How the command ends, in a copy of what it needs of the sandbox."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        box = here / "box"
        _copy(case, sandbox, box)
        if case.change is not None:
            case.change.apply(box)
        before = _files(box)
        begun = time.perf_counter()
        child = os.fork()
        if child == 0:
            _be(case, here)
        _, status, used = os.wait4(child, 0)
        code = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - begun
        after = _files(box)
        changed = [n for n in before.keys() | after.keys() if before.get(n) != after.get(n)]
        written = sorted(n for n in changed if n in after)
        return Outcome(
            case,
            code,
            (here / "out").read_text(errors="replace"),
            (here / "err").read_text(errors="replace"),
            seconds,
            used.ru_maxrss / 1024 - _own_megabytes(),
            tuple(sorted(changed)),
            tuple(n for n in written if n in before),
            tuple(n for n in written if not _is_valid(box / n, code)),
        )


def _copy(case: Case, sandbox: Path, box: Path) -> None:
    """The files and folders of the sandbox that the command or the change names."""
    box.mkdir()
    words = (*case.arguments, "" if case.change is None else case.change.name)
    named = {part for word in words for part in word.replace("=", "/").split("/")}
    for path in sandbox.iterdir():
        if path.name in named:
            (shutil.copytree if path.is_dir() else shutil.copy)(path, box / path.name)


def _own_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _be(case: Case, here: Path) -> NoReturn:
    """The child: the command with its output in files, in the sandbox."""
    code = 99
    try:
        os.setsid()
        os.chdir(here / "box")
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(here / name, os.O_WRONLY | os.O_CREAT), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8")  # strict, as Python's own
        sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        os.environ["PIDFORMER_CACHE"] = str(here / "cache")
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(6 * SECONDS)
        _no_long_work()
        main(list(case.arguments))
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    _stop(code)
