"""Who works on which job: claims that several processes, on one disk, cannot both hold.

A claim is a file `<job>.<n>.json` that is made exclusively; the one with the largest n counts. Its
holder writes a rising number into it (the heartbeat). A claim is stale when its process is dead,
which those on the same machine see at once, or when its heartbeat has not moved for `stale`
seconds by the watcher's own clock: clocks of different machines are never compared. A stale claim
n is taken over by making n + 1, which again only one can do. A holder that was overtaken (it had
been suspended, say) notices at its next beat, and stops.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from glob import escape
from pathlib import Path
from typing import Any

from pidformer.files import atomic_path, process_place, process_start, sweep, temporary_beside

BEAT, STALE = 5.0, 60.0


class JobClaims:
    """The claims in one folder, as one process sees them."""

    def __init__(self, folder: Path, *, beat: float = BEAT, stale: float = STALE) -> None:
        self.folder, self.beat, self.stale = folder, beat, stale
        self._seen: dict[Path, tuple[str, float]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)

    def take(self, job: str, on_beat: Callable[[], None] | None = None) -> JobClaim | None:
        """The job's claim for this process; None while another holds it."""
        number = self._latest(job)
        if number and self._is_alive(self._path(job, number)):
            return None
        path = self._path(job, number + 1)
        holder = {"job": job, "host": socket.gethostname(), **_myself(), "beat": 0}
        return JobClaim(self, path, holder, on_beat) if _make(path, json.dumps(holder)) else None

    def holder(self, job: str) -> dict[str, Any] | None:
        """Who works on the job, if anyone does."""
        number = self._latest(job)
        if not number or not self._is_alive(self._path(job, number)):
            return None
        return _parse(_read(self._path(job, number))) or {}

    def is_latest(self, path: Path) -> bool:
        job, number = path.name.removesuffix(".json").rsplit(".", 1)
        return self._latest(job) == int(number)

    def clear(self, path: Path) -> None:
        """Remove a claim, and the stale ones below it."""
        job, number = path.name.removesuffix(".json").rsplit(".", 1)
        for lower in range(1, int(number) + 1):  # upwards: no stale one may count meanwhile
            self._path(job, lower).unlink(missing_ok=True)

    def tidy(self, job: str) -> None:
        """Remove the claim that a killed process left on a job that is done."""
        number = self._latest(job)
        if number and not self._is_alive(self._path(job, number)):
            self.clear(self._path(job, number))

    def _path(self, job: str, number: int) -> Path:
        return self.folder / f"{job}.{number}.json"

    def _latest(self, job: str) -> int:
        ends = (p.name[len(job) + 1 : -5] for p in self.folder.glob(f"{escape(job)}.*.json"))
        return max((int(end) for end in ends if end.isdigit()), default=0)

    def _is_alive(self, path: Path) -> bool:
        text = _read(path)
        if text is None:  # let go just now
            return False
        holder = _parse(text)
        if holder is not None and holder.get("place") == process_place():
            return process_start(int(holder["pid"])) == holder["born"]
        seen, since = self._seen.get(path, (None, 0.0))
        if seen != text:
            self._seen[path] = (text, time.monotonic())
            return True
        return time.monotonic() - since < self.stale


class JobClaim:
    """A job that this process holds, with a thread that says so; lets go at the end of `with`."""

    def __init__(
        self,
        claims: JobClaims,
        path: Path,
        holder: dict[str, Any],
        on_beat: Callable[[], None] | None = None,
    ) -> None:
        self._claims, self._path, self._holder = claims, path, holder
        self._on_beat = on_beat
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self.is_lost = False

    def __enter__(self) -> JobClaim:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if not self.is_lost:
            self._claims.clear(self._path)

    def _beat(self) -> None:
        while not self._ended.wait(self._claims.beat):
            try:
                if not self._claims.is_latest(self._path):
                    self.is_lost = True
                    os.kill(os.getpid(), signal.SIGINT)  # training saves; what waits wakes up
                    return
                self._holder["beat"] += 1
                with atomic_path(self._path) as temporary:
                    temporary.write_text(json.dumps(self._holder))
                if self._on_beat is not None:
                    self._on_beat()
            except OSError:  # a disk that is full, or away for a moment: the next beat tries again
                continue


def _make(path: Path, text: str) -> bool:
    """Make the file with its whole content; False if it is there already."""
    temporary = temporary_beside(path)
    try:
        temporary.write_text(text)
        _place(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _place(temporary: Path, path: Path) -> None:
    """Give a file the name `path`; FileExistsError where that is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a disk without links
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        os.replace(temporary, path)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _parse(text: str | None) -> dict[str, Any] | None:
    try:
        found = json.loads(text or "")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _myself() -> dict[str, Any]:
    return {"place": process_place(), "pid": os.getpid(), "born": process_start(os.getpid())}
