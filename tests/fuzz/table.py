"""The table of verdicts in docs/reliability.md."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.harness import GOOD, VERDICTS, Outcome

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- python -m tests.fuzz --table -->", "<!-- end of the table -->"


class Verdict(NamedTuple):
    """What the table says of a case."""

    kind: str
    verdict: str
    seconds: float
    megabytes: float

    @classmethod
    def of(cls, outcome: Outcome) -> Verdict:
        return cls(outcome.case.kind, outcome.verdict, outcome.seconds, outcome.megabytes)


def as_table(found: Sequence[Verdict], seed: int) -> str:
    """Cases by kind and verdict, with the sums, the seed, the time and the machine."""
    counts = Counter((one.kind, one.verdict) for one in found)
    kinds = sorted({kind for kind, _ in counts}, key=lambda kind: (":" in kind, kind))
    lines = [f"| Wrong or damaged | cases | {' | '.join(VERDICTS)} |"]
    lines.append("|---" + "|---:" * (len(VERDICTS) + 1) + "|")
    for kind in kinds:
        lines.append(_line(kind, [counts[kind, verdict] for verdict in VERDICTS]))
    sums = [sum(counts[kind, verdict] for kind in kinds) for verdict in VERDICTS]
    lines.append(_line("**all**", sums))
    bad = sum(one.verdict not in GOOD for one in found)
    about = (
        f"{len(found):,} cases, seed {seed}, {bad} not as they should be; on {os.cpu_count()} CPU "
        f"cores, {sum(one.seconds for one in found) / 3600:.1f} hours of commands, the slowest "
        f"{max(one.seconds for one in found):.1f} s; the largest took "
        f"{max(0.0, *(one.megabytes for one in found)):,.0f} MB more than an idle process."
    )
    return "\n".join([about, "", *lines])


def _line(name: str, counts: Sequence[int]) -> str:
    return f"| {name} | {sum(counts):,} | {' | '.join(f'{n:,}' for n in counts)} |"


def put_table(table: str) -> None:
    page = PAGE.read_text()
    found = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)
    assert found.search(page), f"{PAGE} has no place for the table"
    PAGE.write_text(found.sub(lambda _: f"{BEGIN}\n\n{table}\n\n{END}", page))
