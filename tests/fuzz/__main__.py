"""`python -m tests.fuzz [COUNT] [SEED]`: the table of verdicts, and each case that is not ok."""

import json
import sys
from collections import Counter

from rich.console import Console
from rich.progress import track

from tests.fuzz.cases import some
from tests.fuzz.harness import Outcome, run, sandbox


def shown(outcome: Outcome) -> str:
    given = " ".join(x if len(x) < 60 else f"{x[:30]}...({len(x)})" for x in outcome.case.arguments)
    last = (outcome.err.strip().splitlines() or [""])[-1][:200]
    case = outcome.case
    parts = (outcome.verdict, outcome.code, case.what, ascii(given), case.damage, ascii(last))
    return "\t".join(map(str, parts))


def main() -> None:
    count, seed = (int(x) for x in (*sys.argv[1:], "10000", "0")[:2])
    console = Console(stderr=True)
    verdicts: Counter[str] = Counter()
    with sandbox() as box:
        for case in track(some(box, count, seed), "fuzzing", console=console):
            outcome = run(case, box)
            verdicts[outcome.verdict] += 1
            if outcome.verdict != "ok":
                print(shown(outcome), flush=True)
    print(json.dumps(dict(verdicts)))
    sys.exit(int(set(verdicts) != {"ok"}))


if __name__ == "__main__":
    main()
