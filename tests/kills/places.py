"""Folders that commands work in: made alike, disturbed, brought to their end, compared."""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pidformer.files import is_temporary
from tests.kills.child import Act, Ended, start
from tests.kills.commands import Writes

Content = dict[str, Any]
NUMBERS = ("results.jsonl", "published records", "state.json")


def content(place: Path) -> Content:
    """All files by name: their bytes, or what is in them beside what a clock says."""
    files = sorted(path for path in place.rglob("*") if path.is_file())
    return {
        str(path.relative_to(place)): _held(path)
        for path in files
        if "tensorboard" not in path.parts  # times in bytes and names; has tests of its own
    }


def _held(path: Path) -> Any:
    if path.suffix == ".jsonl":
        return [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
    if path.name == "state.json":
        return _timeless(json.loads(path.read_text()))
    if path.name == "checksums.json":
        return json.loads(path.read_text()) | {"state.json": None}
    if path.parent.name == "jobs":
        return "seconds spent, and starts"
    return path.read_bytes()


def _timeless(value: Any) -> Any:
    if isinstance(value, list):
        return [_timeless(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {k: v for k, v in value.items() if k != "time" and "second" not in k}
    return {k: _timeless(v) for k, v in kept.items()}


def once(content: Content) -> Content:
    """Without records that two writers both made; which came first does not matter."""
    return {
        name: sorted({json.dumps(each) for each in held}) if isinstance(held, list) else held
        for name, held in content.items()
    }


def differences(found: Content, wanted: Content) -> list[str]:
    more, less = sorted(found.keys() - wanted.keys()), sorted(wanted.keys() - found.keys())
    other = [n for n in sorted(found.keys() & wanted.keys()) if found[n] != wanted[n]]
    groups = (("left over", more), ("missing", less), ("different", other))
    return [f"{what}: {', '.join(names)}" for what, names in groups if names]


@dataclass
class Bench:
    """Where the commands are tried: inputs, and the runs that they need."""

    root: Path
    made: dict[str, Path] = field(default_factory=dict)
    count: int = 0

    def place(self, command: Writes) -> Path:
        """A new folder for a command, with the runs that it needs."""
        self.count += 1
        place = self.root / f"place-{self.count}"
        place.mkdir()
        for name in command.needs:
            shutil.copytree(self.made[name], place / name)
        return place

    def trial(self, command: Writes) -> Trial:
        """A command, and how it ends when nobody disturbs it."""
        place, begun = self.place(command), time.monotonic()
        ended = start(command.arguments(self.root / "in"), place).wait()
        assert ended.code == 0, f"{command.name} ended with {ended.code}: {ended.said}"
        for name in ended.modules:  # the children to come need not import them
            with suppress(Exception):
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # collecting would copy every page of a fork
        if command.makes is not None:
            self.made[command.makes[1]] = place / command.makes[0]
        return Trial(self, command, content(place), ended.changes, time.monotonic() - begun)


@dataclass(frozen=True)
class Trial:
    """A command that is disturbed, again and again."""

    bench: Bench
    command: Writes
    whole: Content
    changes: int
    """Of the disk, by the undisturbed command."""
    seconds: float

    def run(self, place: Path, **disturbed: Any) -> Ended:
        return start(self.command.arguments(self.bench.root / "in"), place, **disturbed).wait()

    def is_there(self, place: Path) -> bool:
        """Whether a folder that is written once is: the command would refuse it."""
        return self.command.is_new and (place / "out").exists()

    def finish(self, place: Path) -> list[str]:
        """Run the command to its end; what is not as it should be. The folder is removed."""
        found: list[str] = []
        if not self.is_there(place):
            ended = self.run(place)
            if ended.code:
                found.append(f"ended with {ended.code}: {ended.said.strip()[-300:]}")
        found += self.look(content(place), self.whole)
        shutil.rmtree(place)
        return found

    def look(self, found: Content, wanted: Content) -> list[str]:
        left = [name for name in found if any(is_temporary(p) for p in _parts(name))]
        return differences(found, wanted) + [f"left over: {name}" for name in left]

    def killed_at(self, place: Path, number: int) -> bool:
        """Killed at a change of the disk; False if it ended before."""
        return self.run(place, at=number).code < 0

    def killed_after(self, place: Path, seconds: float) -> bool:
        child = start(self.command.arguments(self.bench.root / "in"), place)
        time.sleep(seconds)
        child.kill()
        return child.wait().code < 0

    def refused(self, place: Path, act: Act = "full", **disturbed: Any) -> list[str]:
        """One line and exit code 2, or a change that the command can do without."""
        return complaints(self.run(place, act=act, **disturbed))

    def two(self, place: Path, chance: random.Random) -> list[str]:
        """Two at once: what is wrong with their ends. One, at least, ends well."""
        arguments = self.command.arguments(self.bench.root / "in")
        first = start(arguments, place)
        time.sleep(chance.uniform(0, 0.5) * self.seconds)
        ended = start(arguments, place).wait(), first.wait()
        found = [line for each in ended for line in complaints(each)]
        if all(each.code for each in ended):
            found.append(f"neither of two ended well: {[each.said for each in ended]}")
        found += self.look(once(content(place)), once(self.whole))
        shutil.rmtree(place)
        return found


def complaints(ended: Ended) -> list[str]:
    """What is wrong with how a disturbed command ended: well, or with one line and code 2."""
    lines = [line for line in ended.said.splitlines() if line.startswith("pidformer: ")]
    lines = [line for line in lines if not line.startswith("pidformer: warning: ")]
    is_one = ended.said.endswith(f"{lines[0]}\n") and len(lines) == 1 if lines else False
    is_long = is_one and len(lines[0]) > 300
    if ended.code == 0 or (ended.code == 2 and is_one and not is_long):
        return ["a traceback"] if "Traceback" in ended.said else []
    return [f"ended with {ended.code} and {len(lines)} lines: {ended.said[-600:]!r}"]


def _parts(name: str) -> list[Path]:
    path = Path(name)
    return [path, *path.parents][:-1]


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """No file or folder at or below it can be written, by who obeys permissions."""
    paths = [place, *place.rglob("*")]
    for path in paths:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        yield
    finally:
        for path in paths:
            path.chmod(path.stat().st_mode | 0o200)


def one_thread() -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
