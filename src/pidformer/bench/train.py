"""The whole training loop, and reading JPEGs (`bench.reading`).

The loop is the package's own, run on its recipe for 64-pixel images (tiny_imagenet_100) with
made-up images that stay on the device. Images per second are the trainer's own records, everything
included (augmentation, optimiser, logging); the first windows, which compile, are left out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pidformer import results
from pidformer.bench.model import PID, TWIN
from pidformer.bench.reading import encoded, reading
from pidformer.bench.timing import GAINS, BenchSetting, Timing, Workload, rows_of
from pidformer.interrupts import Interrupted, raise_for
from pidformer.runs.recipe import Recipe
from pidformer.training import load_recipe
from pidformer.training.run import train as run_training

LOOP = "training loop"
RECIPE = "tiny_imagenet_100/deit_tiny_softmax.yaml"
CLASSES = 10


class LoopSize(NamedTuple):
    """The loop has windows of `window` steps, of which the first `skipped` do not count."""

    batch: int
    window: int
    windows: int
    skipped: int
    depth: int = 12
    image: int = 64
    patch: int = 8
    jpegs: int = 128
    """Files that the reading decodes, 500 x 375 pixels each."""
    overrides: tuple[str, ...] = ()


LARGE = LoopSize(batch=512, window=50, windows=12, skipped=3)
SMALL = LoopSize(
    batch=8, window=1, windows=6, skipped=2, jpegs=24,
    overrides=("train.precision=fp32", "train.compile=none"),
)  # fmt: skip


def train(setting: BenchSetting, size: LoopSize | None = None) -> Iterator[list[Timing]]:
    """The loop of the twins, then reading."""
    size = size or (LARGE if setting.is_gpu else SMALL)
    with tempfile.TemporaryDirectory() as folder:
        yield _loop(setting, size, Path(folder))
        yield from reading(setting, Path(folder), count=size.jpegs)


def _loop(setting: BenchSetting, size: LoopSize, folder: Path) -> list[Timing]:
    data = folder / "images"
    made = encoded(32, (size.image, size.image), setting.seed)
    write_set(data, made, train=size.batch * size.window, val=size.batch)
    found: dict[str, list[float]] = {}
    is_compiled = "train.compile=none" not in size.overrides
    for label, gains in ((TWIN, None), (PID, GAINS)):
        setting.say(f"{LOOP}, {label}")
        found[label] = _images_per_second(setting, size, gains, data, folder / label)
    precision = "float32" if "train.precision=fp32" in size.overrides else "bfloat16"
    group = Workload(
        section="train",
        what=f"DeiT-tiny, {LOOP}",
        sizes={"batch": size.batch, "image": size.image, "patch": size.patch, "depth": size.depth},
        dtype=precision,
        mode="compiled" if is_compiled else "eager",
        unit="images/s",
    )
    return rows_of(group, found)


def _images_per_second(
    setting: BenchSetting, size: LoopSize, gains: str | None, data: Path, run: Path
) -> list[float]:
    """The trainer's own numbers, a window each."""
    recipe = loop_recipe(size, gains, setting.seed)
    try:
        run_training(recipe, run, data=data, device=str(setting.device), is_shown=False)
    except Interrupted as stopped:
        raise_for(stopped.number)
    logged = [r.metrics["images_per_second"] for r in results.read(run) if r.kind == "train"]
    return logged[size.skipped :]


def loop_recipe(size: LoopSize, gains: str | None, seed: int) -> Recipe:
    """The recipe for 64-pixel images, a line of the log for each window, and nothing in between."""
    return load_recipe(
        RECIPE,
        [
            f"seed={seed}",
            f"model.gains={gains or 'null'}",
            f"model.options={{patch_size: {size.patch}, depth: {size.depth}, drop_path_rate: 0.1}}",
            f"data.image_size={size.image}",
            f"data.batch_size={size.batch}",
            f"schedule.steps={size.window * size.windows}",
            "train.evaluate_every=1000000",
            "train.checkpoint_seconds=1000000",
            f"train.log_steps={size.window}",
            *size.overrides,
        ],
    )


def write_set(folder: Path, jpegs: list[bytes], *, train: int, val: int) -> None:
    """An image set in Parquet, the JPEGs over and over again."""
    folder.mkdir()
    for split, count in (("train", train), ("val", val)):
        images = [{"bytes": jpegs[row % len(jpegs)], "path": None} for row in range(count)]
        kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        labels = [row % CLASSES for row in range(count)]
        table = pa.table({"image": pa.array(images, kind), "label": labels})
        pq.write_table(table, folder / f"{split}.parquet", row_group_size=1024)
