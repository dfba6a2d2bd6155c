"""A command in a forked process in which every change of the disk is counted, and one may fail.

What counts is what Python does below the folder that the command works in: open a file to write,
write to it, sync, rename, remove, make a folder. At the n-th of these the process kills itself
(half of what was to be written is then on the disk), or the disk is full from there on.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import io
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from pidformer.cli import main

Act = Literal["kill", "full"]
_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate"}
_GROWS = {"open", "write", "sync", "os.mkdir", "os.link"}
"""What a full disk refuses; names can be changed and files removed on it."""
_OPEN, _SYNC = io.open, os.fsync


class Moments:
    """Counts the changes below `place`, and acts at number `at`."""

    def __init__(self, place: Path, at: int | None, act: Act) -> None:
        self.place, self.at, self.act = f"{place}{os.sep}", at, act
        self.count = 0

    def watch(self) -> None:
        """For the rest of the process."""
        builtins.open = io.open = self._opened  # type: ignore[assignment]
        os.fsync = self._synced
        sys.addaudithook(self._hear)

    def changes(self, kind: str, path: Any) -> bool:
        """Whether to stop half-way; raises where the disk is full."""
        if isinstance(path, int) or not os.path.abspath(os.fsdecode(path)).startswith(self.place):
            return False
        self.count += 1
        if self.at is None or self.count < self.at:
            return False
        if self.act == "full" and kind in _GROWS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fsdecode(path))
        return self.act == "kill"

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = given
            is_change = bool(flags & (os.O_WRONLY | os.O_RDWR))
        else:
            path, is_change = given[0] if given else None, event in _CHANGES
        if is_change and self.changes(event, path):
            die()

    def _synced(self, handle: int) -> None:
        if self.changes("sync", os.readlink(f"/proc/self/fd/{handle}")):
            die()
        _SYNC(handle)

    def _opened(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> IO[Any]:
        """As `open`; what a file is given, it writes through `_File`."""
        if isinstance(file, int) or opener or buffering == 0 or not set(mode) & set("wax+"):
            return _OPEN(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = _File(os.fspath(file), mode.replace("b", "").replace("t", ""))
        raw.moments = self
        buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)


class _File(io.FileIO):
    moments: Moments

    def write(self, data: Any) -> int:
        if not self.moments.changes("write", self.name):
            return super().write(data)
        super().write(bytes(data)[: len(data) // 2])
        die()
        return 0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Ended:
    code: int
    """Of the exit, or minus the number of the signal."""
    said: str
    """On stderr."""
    changes: int
    """Of the disk; 0 for a process that was killed."""
    modules: tuple[str, ...]


@dataclass(frozen=True)
class Child:
    """A command that was started."""

    pid: int
    _said: int
    _told: int

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> Ended:
        said, told = _read(self._said), _read(self._told)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        changes, modules = json.loads(told) if code >= 0 and told else (0, [])
        return Ended(code, said.decode(), changes, tuple(modules))


def _read(pipe: int) -> bytes:
    with open(pipe, "rb") as file:
        return file.read()


def start(
    arguments: Sequence[str],
    place: Path,
    *,
    at: int | None = None,
    act: Act = "kill",
    most: int | None = None,
    obeys: bool = False,
) -> Child:
    """Start a command in the folder `place`.

    `most` bounds the bytes of any file, by the system (RLIMIT_FSIZE). `obeys`: permissions count,
    for root too.
    """
    said, told = os.pipe(), os.pipe()  # whose length no limit bounds
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(said[1])
        os.close(told[1])
        return Child(pid, said[0], told[0])
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(said[1], 2)
        os.close(said[1])
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", 1)  # pytest has its own
        os.chdir(place)
        os.environ["PIDFORMER_CACHE"] = str(place / "cache")
        sys.argv = ["pidformer", *arguments]
        moments = Moments(place, at, act)
        if obeys:
            drop_privileges()
        if most is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        moments.watch()
        try:
            main(list(arguments))
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        sys.stderr.close()  # nothing more is said
        os.write(told[1], json.dumps([moments.count, sorted(sys.modules)]).encode())
    except BaseException:
        import traceback

        with contextlib.suppress(BaseException):
            os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def drop_privileges() -> None:
    """Let permissions hold for root: without CAP_DAC_OVERRIDE, _READ_SEARCH and CAP_FOWNER."""
    if os.geteuid() != 0:
        return
    system = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
    if system.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    sets[0] &= ~0b1110
    if system.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")
