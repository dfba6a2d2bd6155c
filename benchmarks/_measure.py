"""The options that the measured benchmarks share with `pidformer bench`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from pidformer.bench import Bench
from pidformer.bench.run import ALL, Sections
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
