"""The table of verdicts in docs/reliability.md."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.harness import GOOD, VERDICTS, Outcome

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- python -m tests.fuzz --table -->", "<!-- end of the table -->"


def as_table(outcomes: Sequence[Outcome], seed: int, seconds: float) -> str:
    """Cases by kind and verdict, with the sums, the seed, the time and the machine."""
    counts = Counter((outcome.case.kind, outcome.verdict) for outcome in outcomes)
    kinds = sorted({kind for kind, _ in counts}, key=lambda kind: (":" in kind, kind))
    lines = [f"| Wrong or damaged | cases | {' | '.join(VERDICTS)} |"]
    lines.append("|---" + "|---:" * (len(VERDICTS) + 1) + "|")
    for kind in kinds:
        lines.append(_line(kind, [counts[kind, verdict] for verdict in VERDICTS]))
    sums = [sum(counts[kind, verdict] for kind in kinds) for verdict in VERDICTS]
    lines.append(_line("**all**", sums))
    slowest = max(outcome.seconds for outcome in outcomes)
    largest = max(outcome.megabytes for outcome in outcomes)
    bad = sum(outcome.verdict not in GOOD for outcome in outcomes)
    about = (
        f"{len(outcomes):,} cases, seed {seed}, {bad} not as they should be; {seconds / 60:.0f} "
        f"minutes on {os.cpu_count()} CPU cores, the slowest case {slowest:.1f} s, the largest "
        f"{largest:,.0f} MB above the idle process."
    )
    return "\n".join([about, "", *lines])


def _line(name: str, counts: Sequence[int]) -> str:
    return f"| {name} | {sum(counts):,} | {' | '.join(f'{n:,}' for n in counts)} |"


def put_table(table: str) -> None:
    page = PAGE.read_text()
    found = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)
    assert found.search(page), f"{PAGE} has no place for the table"
    PAGE.write_text(found.sub(lambda _: f"{BEGIN}\n\n{table}\n\n{END}", page))
