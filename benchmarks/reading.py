"""Images a second and core: a plain loop, timm's loader, ours from JPEG files and from a cache.

    taskset -c 0 python -m benchmarks.reading --data DIR [--images 512] [--rounds 5]

DIR is an image set in class folders (train/CLASS/*.jpg); without it the JPEGs are made up, as in
`pidformer bench train`. All contenders run in this process, in turns.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pidformer.bench.reading import reading
from pidformer.bench.run import ALL
from pidformer.bench.timing import BenchSetting, Timing
from pidformer.cli.bench import show_bench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="image set in class folders")
    parser.add_argument("--images", type=int, default=128, help="images of a turn")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    options = parser.parse_args()

    def section(setting: BenchSetting) -> Iterator[list[Timing]]:
        with tempfile.TemporaryDirectory() as work:
            yield from reading(setting, Path(work), count=options.images, photos=options.data)

    show_bench(
        ALL,
        sections={"train": section},
        rounds=options.rounds,
        device="cpu",
        is_quiet=False,
        command=shlex.join(["python", "-m", "benchmarks", "reading", *sys.argv[1:]]),
    )


if __name__ == "__main__":
    main()
