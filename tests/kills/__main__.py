"""`python -m tests.kills`: kill every command that writes, at every write and at random moments.

    python -m tests.kills               all of it, and the table in docs/reliability.md
    python -m tests.kills --only train  commands that the pattern finds, and their rows
    python -m tests.kills --sample      a little of everything for each command, as the tests do

The children are forked from this process, which imports and computes nothing itself.
"""

from __future__ import annotations

import argparse
import gc
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tests.kills.commands import COMMANDS, Writes, write_inputs
from tests.kills.places import Bench, Trial, one_thread, read_only

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
KILLS = 20
SIZES = (0, 100, 1000, 4096, 20_000)
"""Bytes that a file may have where the disk is full."""


@dataclass
class Row:
    """What a command went through, and what was wrong."""

    trial: Trial
    at_writes: int = 0
    at_random: int = 0
    full: int = 0
    limits: int = 0
    wrong: list[str] = field(default_factory=list)

    def note(self, when: str, found: list[str]) -> None:
        for line in found:
            self.wrong.append(line)
            print(f"  WRONG {self.trial.command.name}, {when}: {line}", flush=True)

    def at_every_write(self, stride: int) -> None:
        """Killed at write 1, 2, ... (or at each so many), until it ends undisturbed."""
        for number in range(1, 2 * self.trial.changes, stride):
            place = self.trial.bench.place(self.trial.command)
            if not self.trial.killed_at(place, number):
                self.note("to its end", self.trial.finish(place))
                return
            self.at_writes += 1
            self.note(f"killed at write {number}", self.trial.finish(place))

    def at_random_moments(self, kills: int, chance: random.Random) -> None:
        """Until it was killed so often; whenever it gets to its end, from the beginning again."""
        trial, begun = self.trial, time.monotonic()
        place = trial.bench.place(trial.command)
        self.note("undisturbed, once more", trial.finish(place))
        seconds = time.monotonic() - begun
        place = trial.bench.place(trial.command)
        while self.at_random < kills:
            is_over = trial.is_there(place)
            if not is_over and trial.killed_after(place, chance.uniform(0, 0.8) * seconds):
                self.at_random += 1
            else:
                self.note("killed at random", trial.finish(place))
                place = trial.bench.place(trial.command)
        self.note("killed at random", trial.finish(place))

    def on_a_full_disk(self, stride: int) -> None:
        for number in range(1, self.trial.changes + 1, stride):
            place = self.trial.bench.place(self.trial.command)
            self.full += 1
            found = self.trial.refused(place, at=number)
            self.note(f"disk full from write {number}", found + self.trial.finish(place))
        for most in SIZES:
            place = self.trial.bench.place(self.trial.command)
            self.limits += 1
            found = self.trial.refused(place, most=most)
            self.note(f"files of {most} bytes", found + self.trial.finish(place))

    def in_a_folder_to_read(self) -> None:
        place = self.trial.bench.place(self.trial.command)
        with read_only(place):
            found = self.trial.refused(place, obeys=True)
        self.note("in a read-only folder", found + self.trial.finish(place))

    def by_two_writers(self, chance: random.Random, times: int = 3) -> None:
        for _ in range(times):
            place = self.trial.bench.place(self.trial.command)
            self.note("two at once", self.trial.two(place, chance))

    def sample(self, chance: random.Random) -> None:
        """In one folder, one after the other: full, read-only, killed twice, two at once."""
        trial, place = self.trial, self.trial.bench.place(self.trial.command)
        numbers = [chance.randint(1, trial.changes) for _ in range(2)]
        self.note(f"disk full from write {numbers[0]}", trial.refused(place, at=numbers[0]))
        if not trial.is_there(place):
            with read_only(place):
                self.note("read-only", trial.refused(place, obeys=True))
            self.at_writes += trial.killed_at(place, numbers[1])
        if not trial.is_there(place):
            self.at_random += trial.killed_after(place, chance.uniform(0, 1) * trial.seconds)
        if trial.is_there(place):
            self.note("killed", trial.finish(place))
        else:
            self.note(f"killed at {numbers[1]}, then two at once", trial.two(place, chance))

    def cells(self) -> tuple[str, ...]:
        held = self.trial.whole.values()
        whole = sum(isinstance(each, bytes) for each in held)
        same = "as undisturbed" if not self.wrong else f"{len(self.wrong)} differences"
        return (
            f"`{self.trial.command.name}`",
            f"{self.at_writes} of {self.trial.changes}",
            f"{self.at_random}",
            f"{self.full} + {self.limits}",
            f"{whole} + {len(held) - whole}",
            same,
        )


HEADINGS = (
    "Command", "Killed at writes", "Killed at random", "Full disk: at writes + by size",
    "Files compared: bytes + numbers", "Then run again",
)  # fmt: skip


def table(rows: list[Row], before: str = "") -> str:
    """Rows of commands that were not tried now stay as they were."""
    held = {line.split(" | ")[0]: line for line in before.splitlines()}
    made = {f"| {row.cells()[0]}": _line(row.cells()) for row in rows}
    known = (held | made).get
    lines = [known(f"| `{command.name}`") for command in COMMANDS]
    head = [_line(HEADINGS), _line(("---", *("---:",) * 4, "---"))]
    return "\n".join([*head, *filter(None, lines)])


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def tried(root: Path, asked: argparse.Namespace) -> Iterator[Row]:
    bench = Bench(root)
    write_inputs(root / "in")
    for number, command in enumerate(COMMANDS):
        is_asked = re.search(asked.only, command.name) is not None
        if is_asked or _is_needed(command, asked.only):
            row = Row(bench.trial(command))
            if is_asked:
                yield _gone_through(row, random.Random(asked.seed + number), asked)


def _is_needed(command: Writes, only: str) -> bool:
    """Whether it makes a run of a command that is asked for, or of one that such a one needs."""
    if command.makes is None:
        return False
    users = [other for other in COMMANDS if command.makes[1] in other.needs]
    return any(re.search(only, other.name) or _is_needed(other, only) for other in users)


def _gone_through(row: Row, chance: random.Random, asked: argparse.Namespace) -> Row:
    begun = time.monotonic()
    if asked.sample:
        row.sample(chance)
    else:
        row.in_a_folder_to_read()
        row.by_two_writers(chance)
        row.on_a_full_disk(asked.each)
        row.at_random_moments(asked.kills, chance)
        row.at_every_write(asked.each)
    print(f"{' '.join(row.cells())}  ({time.monotonic() - begun:.0f} s)", flush=True)
    return row


def put_into_page(rows: list[Row]) -> None:
    page = PAGE.read_text()
    marked = re.compile(r"(<!-- kills -->\n)(.*?)(\n<!-- /kills -->)", re.DOTALL)
    assert marked.search(page), f"{PAGE} has no place for the table"
    PAGE.write_text(marked.sub(lambda m: m[1] + table(rows, m[2]) + m[3], page))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kills")
    parser.add_argument("--only", default="", help="commands whose name this pattern finds")
    parser.add_argument("--kills", type=int, default=KILLS, help="at random moments")
    parser.add_argument("--each", type=int, default=1, help="only at each so many writes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", action="store_true", help="a little of everything")
    asked = parser.parse_args()
    one_thread()
    torch.set_num_threads(1)
    gc.freeze()  # collecting would copy every page of a fork
    root = Path(tempfile.mkdtemp(prefix="pidformer-kills-"))
    try:
        rows = []
        for row in tried(root, asked):
            rows.append(row)
            if not asked.sample:
                put_into_page([row])
    finally:
        shutil.rmtree(root)
        gc.unfreeze()
    sys.exit(int(any(row.wrong for row in rows)))


if __name__ == "__main__":
    main()
