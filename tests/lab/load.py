"""`python -m tests.lab.load`: the lab with many visitors; what it took, as a table.

    python -m tests.lab.load [--visitors 50] [--seconds 60] [--requests 2000]

The lab is a process of its own, on 127.0.0.1, that ends when this one does.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.lab.visitor import API, Visitor, events

FLAT = 1.05
"""How much larger the server's memory may be after the requests."""


@dataclass
class Served:
    """A lab in another process: what a `Visitor` needs to know of it."""

    address: str
    folder: Path
    """Where it keeps the files of its visitors."""
    process: psutil.Process

    @property
    def megabytes(self) -> float:
        """Of its own: pages of files and libraries come and go as the system pleases."""
        return self.process.memory_full_info().uss / 2**20

    @property
    def kept(self) -> int:
        """Bytes of the files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


@dataclass
class Told:
    """What visitors saw."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, seconds: float, status: int) -> None:
        with self.lock:
            self.seconds.append(seconds)
            self.statuses[status] += 1

    def at(self, share: float) -> float:
        return statistics.quantiles(self.seconds, n=100, method="inclusive")[round(share * 100) - 1]


@contextmanager
def served(home: Path, *runs: Path) -> Iterator[Served]:
    """The lab of the demo's runs in `home`, and others."""
    command = [sys.executable, "-m", "tests.lab.load", "--serve", str(home), *map(str, runs)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None and it.stdin is not None
        try:
            address, folder = json.loads(it.stdout.readline())
            yield Served(address, Path(folder), psutil.Process(it.pid))
        finally:
            it.stdin.close()
            it.wait(30)


def serve(home: str, *runs: str) -> None:
    """Until nobody holds the other end of stdin."""
    from pidformer.lab.server import open_lab

    own = [home] if any(Path(home).iterdir()) else []  # without runs, the examples
    with open_lab([*own, *runs], port=0, home=home) as lab:
        print(json.dumps([lab.address, str(lab.folder)]), flush=True)
        sys.stdin.read()


def visit(visitor: Visitor, known: list[Any], chance: random.Random, told: Told) -> None:
    """One request: mostly an event of the page, now and then the page itself or queued work."""
    begun, what = time.monotonic(), chance.random()
    if what < 0.05:
        status = visitor.ask(chance.choice(["", "config", "theme.css"]))[0]
    else:
        queued = [pair for pair in known if pair[0]["queue"] and pair[1] != [None]]
        quick = [pair for pair in known if not pair[0]["queue"]]
        event, inputs = chance.choice(queued if what < 0.07 else quick)
        status = visitor.raise_event(event, inputs)[0]
        if event["queue"] and status == 200:  # its end is told, and the work done by then
            visitor.ask(f"{API}queue/data?session_hash={visitor.session}")
    told.note(time.monotonic() - begun, status)


def crowd(lab: Any, visitors: int, seconds: float, seed: int = 0) -> Told:
    """So many at once, for so long, each with a pause of up to a second between requests."""
    told, opened = Told(), threading.Barrier(visitors, timeout=300)

    def one(number: int) -> None:
        chance, visitor = random.Random(seed + number), Visitor(lab)
        known = events(visitor)
        opened.wait()
        ends = time.monotonic() + seconds
        while True:
            visit(visitor, known, chance, told)
            if time.monotonic() > ends:
                return
            time.sleep(chance.uniform(0, 1))

    threads = [threading.Thread(target=one, args=(n,)) for n in range(visitors)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def every_event(lab: Any) -> None:
    """Each event of the page once: what is loaded when it is first needed is then there."""
    visitor = Visitor(lab)
    for event, inputs in events(visitor):
        if inputs != [None] and visitor.raise_event(event, inputs)[0] == 200 and event["queue"]:
            visitor.ask(f"{API}queue/data?session_hash={visitor.session}")


def requests(lab: Any, count: int, seed: int = 0) -> Told:
    """So many, one after the other, by a new visitor each hundred."""
    told, chance = Told(), random.Random(seed)
    for number in range(count):
        if number % 100 == 0:
            visitor = Visitor(lab)
            known = events(visitor)
        visit(visitor, known, chance, told)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.load")
    parser.add_argument("--visitors", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--requests", type=int, default=2000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, served(Path(home)) as lab:
        many = crowd(lab, asked.visitors, asked.seconds)
        every_event(lab)
        requests(lab, 500)  # to warm up
        before = lab.megabytes
        few = requests(lab, asked.requests, seed=1)
        after, kept = lab.megabytes, lab.kept
    rate = len(many.seconds) / asked.seconds
    print(f"{asked.visitors} visitors for {asked.seconds:g} s: {len(many.seconds)} requests, "
          f"{rate:.0f} a second, median {many.at(0.5):.3f} s, 99 % within {many.at(0.99):.2f} s, "
          f"answers {dict(many.statuses)}")  # fmt: skip
    print(f"{len(few.seconds)} requests: answers {dict(few.statuses)}, memory {before:.0f} MB "
          f"before and {after:.0f} MB after ({100 * (after / before - 1):+.1f} %), files of "
          f"{kept / 1e3:.0f} kB kept")  # fmt: skip
    is_well = set(many.statuses) | set(few.statuses) == {200} and after <= FLAT * before
    sys.exit(int(not is_well))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        main()
