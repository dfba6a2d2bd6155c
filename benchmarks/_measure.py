"""What the benchmarks share: the options of `pidformer bench`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from pidformer.bench import Bench
from pidformer.bench.run import ALL, Sections
from pidformer.cli.bench import show_bench


def measured(
    doc: str, sections: Sections, *, name: str | None = None
) -> tuple[Bench, argparse.Namespace]:
    """Read the options, measure every section and print its tables; `name`: of the command."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--rounds", type=int, help="turns of each contender")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for results.jsonl")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    options = parser.parse_args()
    words = shlex.split(name or parser.prog.removesuffix(".py"))
    done = show_bench(
        ALL,
        sections=sections,
        rounds=options.rounds,
        out=options.out,
        seed=options.seed,
        device=options.device,
        is_quiet=options.json,
        command=shlex.join(["python", "-m", "benchmarks", *words, *sys.argv[1:]]),
    )
    return done, options
