"""Where a step of the whole training loop goes: the device's kernels, the host, waiting.

    python -m benchmarks.loop [--gains 0.4,0.1,0.05,1 | none] [--device cuda] [--rows 25]
        [--recipe gutenberg/softmax.yaml [--data DIR] [--set train.compile=reduce-overhead]]

The trainer on its recipe for 64-pixel images, as in `pidformer bench train`, or on another; one of
language without --data trains on text that is made up, with as many words as gutenberg. Three
stretches of steps, once all is compiled: one is timed as it is, one under torch's profiler
(kernels), one under Python's (functions of the host, which it slows down). "Waiting" is how long
the host stands still until the device has done the step before: near zero, the device waits for the
host instead.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.step import kernel_times, print_kernels
from pidformer.bench.reading import encoded
from pidformer.bench.timing import GAINS
from pidformer.bench.train import LARGE, SMALL, loop_recipe, write_set
from pidformer.runs.recipe import Recipe
from pidformer.training import load_recipe
from pidformer.training.loop import Trainer
from pidformer.training.nonfinite import NonFiniteWatch
from pidformer.training.run import train

STEPS = 20


class Stretches:
    """Stands around the trainer's steps, counts them and measures three stretches of them."""

    def __init__(self, first: int, steps: int, rows: int) -> None:
        self.first, self.steps, self.rows = first, steps, rows
        self.count, self.waited = 0, 0.0
        self.begun = 0.0
        has_gpu = torch.cuda.is_available()
        kind = ProfilerActivity.CUDA if has_gpu else ProfilerActivity.CPU
        self.device = profile(activities=[kind])
        self.host = cProfile.Profile()

    def before(self) -> None:
        """Called before each step: a stretch ends or begins between two of them."""
        at, rest = divmod(self.count - self.first, self.steps)
        self.count += 1
        if rest or not 0 <= at <= 3:
            return
        _settle()
        if at == 1:
            wall = 1e3 * (time.perf_counter() - self.begun) / self.steps
            waited = 1e3 * self.waited / self.steps
            print(f"step {wall:.2f} ms, of which waiting {waited:.2f} ms", flush=True)
        elif at == 2:
            self.device.stop()
            self._say_kernels()
        elif at == 3:
            self.host.disable()
            self._say_functions()
        if at == 1:
            self.device.start()
        elif at == 2:
            self.host.enable()
        self.begun, self.waited = time.perf_counter(), 0.0

    def _say_kernels(self) -> None:
        found = kernel_times(self.device)
        total = sum(spent for _, spent in found.values()) / self.steps
        print(f"kernels {total:.2f} ms per step\n")
        print_kernels(found, self.steps, self.rows)

    def _say_functions(self) -> None:
        text = io.StringIO()
        table = pstats.Stats(self.host, stream=text).strip_dirs()
        table.sort_stats("cumulative").print_stats(self.rows)
        table.sort_stats("tottime").print_stats(self.rows)
        print(f"\nfunctions of the host, {self.steps} steps\n{text.getvalue()}", flush=True)


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gains", default=GAINS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=25)
    parser.add_argument("--recipe", help="another one, trained on --data or on text made up")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of the recipe")
    options = parser.parse_args()
    is_gpu = options.device.startswith("cuda")
    size = LARGE if is_gpu else SMALL
    steps = STEPS if is_gpu else 1
    look = Stretches(size.window if is_gpu else 1, steps, options.rows)
    one_step, check = Trainer._train_step, NonFiniteWatch.check_now

    def train_step(trainer: Trainer, *given: Any) -> Any:
        look.before()
        return one_step(trainer, *given)

    def check_now(watch: NonFiniteWatch) -> None:
        begun = time.perf_counter()
        check(watch)
        look.waited += time.perf_counter() - begun

    gains = None if options.gains == "none" else options.gains
    with tempfile.TemporaryDirectory() as folder:
        if options.recipe is None:
            data = Path(folder) / "images"
            made = encoded(32, (size.image, size.image), 0)
            write_set(data, made, train=size.batch * size.window, val=size.batch)
            recipe = loop_recipe(size._replace(windows=5), gains, seed=0)
        else:
            given = [f"model.gains={gains or 'null'}", *options.set]
            if options.data is None:
                _write_text(Path(folder) / "text", words=110_000, tokens=2_700_000 if is_gpu else 0)
                given += ["text.min_count=1", "text.split=spaces", f"text.cache={folder}"]
            data = options.data or Path(folder) / "text"
            recipe = _recipe(options.recipe, given, look.first + 3 * steps + 1)
        patched = mock.patch.multiple(Trainer, _train_step=train_step)
        with patched, mock.patch.object(NonFiniteWatch, "check_now", check_now):
            train(recipe, Path(folder) / "run", data=data, device=options.device, is_shown=False)


def _recipe(name: str, given: list[str], steps: int) -> Recipe:
    """So many steps of a recipe, with nothing in between."""
    quiet = ["train.evaluate_every=1000000", "train.evaluate_steps=null"]
    quiet += [f"schedule.steps={steps}", "train.checkpoint_seconds=1000000"]
    return load_recipe(name, [*given, *quiet])


def _write_text(folder: Path, *, words: int, tokens: int) -> None:
    """Every word once, which makes them as rare as gutenberg's rare ones, and frequent ones."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    often = rng.zipf(1.3, tokens + 20_000)
    for split, part in (
        ("train", rng.permutation(np.concatenate([often, np.arange(words)]))),
        ("valid", often[:20_000]),
    ):
        text = [f"w{number}" for number in (part % words).tolist()]
        lines = [" ".join(text[k : k + 40]) + "\n" for k in range(0, len(text), 40)]
        (folder / f"{split}.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
