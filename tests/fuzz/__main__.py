"""`python -m tests.fuzz [COUNT] [--seed N] [--jobs N] [--only TEXT] [--table]`.

Each case that is not as it should be, and the table of verdicts; `--table` puts the table into
docs/reliability.md.
"""

import argparse
import multiprocessing
import os
import sys
import time
from functools import partial

from tests.fuzz.box import sandbox
from tests.fuzz.cases import some
from tests.fuzz.files import all_cases
from tests.fuzz.harness import GOOD, Outcome, run
from tests.fuzz.table import as_table, put_table


def shown(outcome: Outcome) -> str:
    given = " ".join(x if len(x) < 60 else f"{x[:30]}...({len(x)})" for x in outcome.case.arguments)
    last = (outcome.err.strip().splitlines() or [""])[-1][:300]
    case, change = outcome.case, ascii(outcome.case.change)[:200]
    more = outcome.changed[:3], outcome.invalid[:3]
    parts = (outcome.verdict, outcome.code, case.kind, case.what, ascii(given), change, ascii(last))
    return "\t".join(map(str, (*parts, *more)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("count", type=int, nargs="?", default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="cases whose kind or thing has this text")
    parser.add_argument("--table", action="store_true", help="write docs/reliability.md")
    asked = parser.parse_args()
    begun = time.perf_counter()
    outcomes: list[Outcome] = []
    with sandbox() as box:
        cases = [c for c in all_cases(box, asked.seed) if asked.only in f"{c.kind} {c.what}"]
        chosen = some(cases, asked.count, asked.seed)
        print(f"{len(chosen)} of {len(cases)} cases", flush=True)
        with multiprocessing.get_context("fork").Pool(asked.jobs) as pool:
            found = pool.imap_unordered(partial(run, sandbox=box), chosen, chunksize=8)
            for outcome in found:
                outcomes.append(outcome)
                if outcome.verdict not in GOOD:
                    print(shown(outcome), flush=True)
                if len(outcomes) % 500 == 0:
                    minutes = (time.perf_counter() - begun) / 60
                    print(
                        f"{len(outcomes)} cases in {minutes:.1f} min", file=sys.stderr, flush=True
                    )
    table = as_table(outcomes, asked.seed, time.perf_counter() - begun)
    print(table)
    if asked.table:
        put_table(table)
    sys.exit(int(any(outcome.verdict not in GOOD for outcome in outcomes)))


if __name__ == "__main__":
    main()
