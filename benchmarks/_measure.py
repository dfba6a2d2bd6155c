"""What the measured benchmarks share with `pidformer bench`: options, tables, rows."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from pidformer.bench import Bench, Timing
from pidformer.bench.run import ALL, Sections
from pidformer.bench.timing import Workload, row_of, spread
from pidformer.cli.bench import show_bench


def measured(doc: str, sections: Sections) -> tuple[Bench, argparse.Namespace]:
    """Read the options, measure every section and print its tables."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--rounds", type=int, help="turns of each contender")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for results.jsonl")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    options = parser.parse_args()
    name = parser.prog.removesuffix(".py")
    done = show_bench(
        ALL,
        sections=sections,
        rounds=options.rounds,
        out=options.out,
        seed=options.seed,
        device=options.device,
        is_quiet=options.json,
        command=shlex.join(["python", "-m", "benchmarks", name, *sys.argv[1:]]),
    )
    return done, options


def rows_of(
    group: Workload, values: Mapping[str, Sequence[float]], baseline: str | None = None
) -> list[Timing]:
    """Rows of values that were measured one after the other, not in turns: ratios of medians."""
    base = median(values[next(iter(values)) if baseline is None else baseline])
    return [
        row_of(group, label, spread(found), spread([value / base for value in found]), len(found))
        for label, found in values.items()
    ]
