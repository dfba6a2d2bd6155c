"""One case in a process of its own, and the verdict on how it ended.

The process is a fork of one that has imported everything: a case costs a tenth of a second. Long
work that has been begun is stopped there, and counts as accepted.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

import pidformer
from pidformer.cli import main
from tests.fuzz.cases import Case

SECONDS = 20
MEGABYTES = 2000
"""Above what the process had when it began."""
LINE = 300
HERE = ("127.0.0.1", "localhost", "::1", None, "")
BEGUN, CONNECTED = 90, 91
"""Exit codes of a case that was accepted, and of one that asked for a connection."""


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

    @property
    def verdict(self) -> str:
        """ "ok", or what is wrong with it."""
        if self.code == -signal.SIGALRM:
            return "hang"
        if self.code == CONNECTED:
            return "connection"
        if self.megabytes > MEGABYTES:
            return "memory"
        if "Traceback" in self.err or self.code not in (0, 1, 2, BEGUN):
            return "traceback"
        if self.code != 2:
            return "ok"
        lines = [x for x in self.err.splitlines() if not x.startswith("pidformer: warning:")]
        if len(lines) != 1 or not lines[0].startswith("pidformer: ") or self.out:
            return "unclear"
        if len(lines[0]) > LINE:
            return "overlong"
        return "leftovers" if self.changed else "ok"


def _files(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file()}


def _stop(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _no_long_work() -> None:
    """Where real work begins, the process ends; so it does where it asks for another machine."""
    from pidformer import ledger
    from pidformer.bench import timing
    from pidformer.lab.server import Lab
    from pidformer.reproduce import run as reproduce
    from pidformer.training.loop import Trainer

    def begun(*_: Any, **__: Any) -> NoReturn:
        _stop(BEGUN)

    connect, find = socket.socket.connect, socket.getaddrinfo

    def connect_here(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in HERE:
            _stop(CONNECTED)
        connect(self, address)

    def find_here(host: Any, *rest: Any, **options: Any) -> Any:
        if host not in HERE and options.get("flags", 0) & socket.AI_NUMERICHOST == 0:
            _stop(CONNECTED)
        return find(host, *rest, **options)

    Trainer._train_step = begun  # type: ignore[method-assign]
    ledger.Ledger.add = begun  # type: ignore[method-assign]
    Lab.wait = begun  # type: ignore[method-assign]
    timing.seconds = begun
    reproduce.do = reproduce.in_processes = begun
    socket.socket.connect = connect_here  # type: ignore[method-assign]
    socket.getaddrinfo = find_here


def run(case: Case, sandbox: Path) -> Outcome:
    """How the command ends, in a copy of the sandbox."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        shutil.copytree(sandbox, here / "box")
        if case.damage is not None:
            name, place, bit = case.damage
            data = bytearray((here / "box" / name).read_bytes())
            if bit < 0:
                del data[place:]
            else:
                data[place] ^= 1 << bit
            (here / "box" / name).write_bytes(bytes(data))
        before = _files(here / "box")
        begun = time.perf_counter()
        child = os.fork()
        if child == 0:
            _be(case, here)
        _, status, used = os.wait4(child, 0)
        code = os.waitstatus_to_exitcode(status)
        after = _files(here / "box")
        changed = tuple(
            sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
        )
        return Outcome(
            case,
            code,
            (here / "out").read_text(errors="replace"),
            (here / "err").read_text(errors="replace"),
            time.perf_counter() - begun,
            used.ru_maxrss / 1024 - _own_megabytes(),
            changed,
        )


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
        sys.stdout = os.fdopen(1, "w", buffering=1, errors="surrogateescape")
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="surrogateescape")
        os.environ["PIDFORMER_CACHE"] = str(here / "cache")
        signal.alarm(SECONDS)
        _no_long_work()
        main(list(case.arguments))
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    _stop(code)


@contextmanager
def sandbox() -> Iterator[Path]:
    """Tiny runs of the three tasks, one that was interrupted, a folder of photographs."""
    from PIL import Image

    torch.set_num_threads(1)  # a fork has one thread
    for module in pkgutil.walk_packages(pidformer.__path__, "pidformer."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    with tempfile.TemporaryDirectory() as folder:
        box = Path(folder)
        release = Path(__file__).parents[1] / "runs" / "release"
        for name in ("image", "interrupted", "language", "segmentation"):
            shutil.copytree(release / name, box / name)
        for split in ("train", "val"):
            for number, kind in enumerate(("cat", "dog")):
                (box / "photos" / split / kind).mkdir(parents=True)
                Image.new("RGB", (40, 32), (90 * number, 40, 200)).save(
                    box / "photos" / split / kind / "a.jpg"
                )
        Image.new("RGB", (48, 32), (80, 120, 40)).save(box / "picture.png")
        yield box
