"""`python -m tests.fuzz [COUNT] [--seed N] [--jobs N] [--only TEXT] [--keep FILE] [--table]`.

Each case that is not as it should be, and the table of verdicts; `--table` puts the table into
docs/reliability.md. With `--keep`, a run that was stopped goes on with the cases it had left.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from functools import partial
from pathlib import Path

from tests.fuzz.box import sandbox
from tests.fuzz.cases import Case, some
from tests.fuzz.files import all_cases
from tests.fuzz.harness import GOOD, Outcome, run
from tests.fuzz.table import Verdict, as_table, put_table


def shown(outcome: Outcome) -> str:
    given = " ".join(x if len(x) < 60 else f"{x[:30]}...({len(x)})" for x in outcome.case.arguments)
    last = (outcome.err.strip().splitlines() or [""])[-1][:300]
    case, change = outcome.case, ascii(outcome.case.change)[:200]
    more = outcome.changed[:3], outcome.invalid[:3]
    parts = (outcome.verdict, outcome.code, case.kind, case.what, ascii(given), change, ascii(last))
    return "\t".join(map(str, (*parts, *map(ascii, more))))


def numbered(given: tuple[int, Case], box: Path) -> tuple[int, Outcome]:
    return given[0], run(given[1], box)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("count", type=int, nargs="?", default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="cases whose kind or thing has this text")
    parser.add_argument("--keep", type=Path, default=Path(os.devnull), help="file of verdicts")
    parser.add_argument("--table", action="store_true", help="write docs/reliability.md")
    asked = parser.parse_args()
    begun, found = time.perf_counter(), {}
    if asked.keep.is_file():
        lines = (json.loads(line) for line in asked.keep.read_text().splitlines())
        found = {number: Verdict(*rest) for number, *rest in lines}
    with sandbox() as box, open(asked.keep, "a") as kept:
        cases = [c for c in all_cases(box, asked.seed) if asked.only in f"{c.kind} {c.what}"]
        chosen = some(cases, asked.count, asked.seed)
        left = [(number, case) for number, case in enumerate(chosen) if number not in found]
        print(f"{len(left)} of {len(chosen)} of {len(cases)} cases", flush=True)
        with multiprocessing.get_context("fork").Pool(asked.jobs) as pool:
            for number, outcome in pool.imap_unordered(partial(numbered, box=box), left, 8):
                found[number] = Verdict.of(outcome)
                print(json.dumps((number, *found[number])), file=kept, flush=True)
                if outcome.verdict not in GOOD:
                    print(shown(outcome), flush=True)
                if len(found) % 500 == 0:
                    seconds = time.perf_counter() - begun
                    print(f"{len(found)} cases, {seconds:.0f} s", file=sys.stderr, flush=True)
    table = as_table([*found.values()], asked.seed)
    print(table)
    if asked.table:
        put_table(table)
    sys.exit(int(any(verdict.verdict not in GOOD for verdict in found.values())))


if __name__ == "__main__":
    main()
