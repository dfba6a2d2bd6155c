"""A suite as users run it: images/s of each row of `pidformer evaluate --suite study`.

    python -m benchmarks suite [--device cuda] [--out DIR] [--json]

A DeiT-tiny for images of 64 pixels, one step trained, on made-up JPEGs: opened, decoded, attacked
and judged by the command's own code, with the number of images at a time that it chooses. Rows with
attacks and noise; those of corruptions wait for a CPU. "Recorded" is the same within
`pidformer.robustness.recorded()`, which the command does not enter. Once each, without a spread.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from benchmarks._measure import measured
from pidformer.bench.reading import encoded
from pidformer.bench.timing import GAINS, BenchSetting, Timing, Workload, rows_of
from pidformer.bench.train import LoopSize, loop_recipe, write_set
from pidformer.evaluation.images import run_suite
from pidformer.evaluation.setup import Setup
from pidformer.evaluation.suite import Suite, UnderThreat, load_suite
from pidformer.robustness import recorded
from pidformer.runs.open import open_subject
from pidformer.training.run import train

SUITE = "study"
AS_IT_IS, RECORDED = "as the command runs it", "recorded"
LARGE, SMALL = 4096, 4
"""Images; a published row of 64-pixel models has 10,500."""
ONE_STEP = ("train.precision=fp32", "train.compile=none")


def suite(setting: BenchSetting, images: int | None = None) -> Iterator[list[Timing]]:
    """A table for each row of the suite."""
    images = images or (LARGE if setting.is_gpu else SMALL)
    depth = 12 if setting.is_gpu else 1
    size = LoopSize(batch=4, window=1, windows=1, skipped=0, depth=depth, overrides=ONE_STEP)
    whole = load_suite(SUITE)
    rows = [row for row in whole.rows if isinstance(row, UnderThreat) and "/" not in row.name]
    with tempfile.TemporaryDirectory() as folder:
        data, run = Path(folder) / "images", Path(folder) / "run"
        jpegs = encoded(32, (size.image, size.image), setting.seed)
        write_set(data, jpegs, train=size.batch, val=images)
        recipe = loop_recipe(size, GAINS, setting.seed)
        train(recipe, run, data=data, device=str(setting.device), is_shown=False)
        setup = Setup(subject=open_subject(str(run)), location=data, device=setting.device)
        warm = Suite(whole.name, whole.description, tuple(rows[:2]))
        run_suite(setup, warm, folder=Path(folder) / "warm", is_shown=False)  # kernels compile
        for row in rows:
            found: dict[str, list[float]] = {}
            for label in (AS_IT_IS, RECORDED)[: 1 + setting.is_gpu]:
                setting.say(f"{SUITE}, {row.name}, {label}")
                one = Suite(whole.name, whole.description, (row,))
                with recorded() if label == RECORDED else nullcontext():
                    done = run_suite(setup, one, folder=Path(folder) / label, is_shown=False)
                found[label] = [images / done.records[row.name].metrics["seconds"]]
            group = Workload(
                section="suite",
                what=f"suite {SUITE}, {row.name}",
                sizes={"images": images, "batch": setup.at_once, "image": size.image},
                unit="images/s",
            )
            yield rows_of(group, found)


def main() -> None:
    done, options = measured(__doc__, {"suite": suite})
    if options.json:
        print(json.dumps(done.to_dict()))


if __name__ == "__main__":
    main()
