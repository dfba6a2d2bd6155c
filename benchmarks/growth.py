"""How cost grows: over tokens, depth and batch, and the state over depth.

    python -m benchmarks growth [--device cuda] [--rounds 5] [--out DIR] [--json]

Time and peak memory of forward and backward, PID and softmax, not compiled; on a GPU the time is
that of the kernels, recorded as a CUDA graph. The state is measured from the tensors that a layer
hands to the next. `--out` keeps the rows in DIR/results.jsonl and draws them to DIR/growth.png.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from benchmarks._measure import measured
from pidformer.bench import model as models
from pidformer.bench import operator as operators
from pidformer.bench.timing import (
    GAINS,
    BenchSetting,
    Case,
    Timing,
    Workload,
    measure,
    name_of,
    recorded,
    rows_of,
)
from pidformer.nn import scan_blocks

OVER_TOKENS = "attention forward and backward over tokens, a layer"
OVER_DEPTH, OVER_BATCH = "training step over depth", "training step over batch"
STATE = "state over depth"
FIGURE = "growth.png"
DEPTH = 12
"""While the batch grows."""
AXES = {OVER_TOKENS: "tokens", OVER_DEPTH: "depth", OVER_BATCH: "batch", STATE: "depth"}
"""What is on the horizontal axis."""


class Size(NamedTuple):
    """`shape` is of the operator, whose tokens grow; the rest is a DeiT's."""

    shape: operators.OperatorSize
    tokens: Sequence[int]
    depths: Sequence[int]
    batches: Sequence[int]
    batch: int
    """While the depth grows."""
    image: int = 224
    patch: int = 16
    options: dict[str, Any] | None = None
    """Another width for the DeiT."""


LARGE = Size(
    shape=operators.OperatorSize(1, 16, 64, 64, 4),
    tokens=(64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    depths=(6, 12, 24, 48, 96),
    batches=(1, 4, 16, 64, 256),
    batch=64,
)
SMALL = Size(
    shape=operators.OperatorSize(1, 2, 64, 32, 2),
    tokens=(64, 256, 1024),
    depths=(6, 24, 96),
    batches=(1, 4),
    batch=1,
    image=32,
    patch=8,
    options={"embed_dim": 64, "num_heads": 2},
)


def growth(setting: BenchSetting, size: Size | None = None) -> Iterator[list[Timing]]:
    """Tokens, depth, batch, state: a table for each, a few rows for each point."""
    size = size or (LARGE if setting.is_gpu else SMALL)
    yield [row for tokens in size.tokens for row in _of_operator(setting, size, tokens)]
    yield [
        row
        for depth in size.depths
        for row in _of_model(OVER_DEPTH, setting, size, depth, size.batch)
    ]
    yield [
        row for batch in size.batches for row in _of_model(OVER_BATCH, setting, size, DEPTH, batch)
    ]
    yield list(_states(setting, size))


def state_bytes(state: object) -> int:
    """Bytes of the different tensors of a state."""
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]
    different = {(t.data_ptr(), t.shape, t.dtype): t for t in tensors}
    return sum(t.numel() * t.element_size() for t in different.values())


def _of_operator(setting: BenchSetting, size: Size, tokens: int) -> list[Timing]:
    shape = size.shape._replace(tokens=tokens)
    group = Workload(
        section="growth",
        what=OVER_TOKENS,
        sizes=shape._asdict(),
        dtype=name_of(setting.dtype),
        mode=_mode(setting),
        amount=shape.layers,
    )
    cases = operators.contenders(shape, setting, is_training=True)
    return measure(group, [replace(case, wrap=_wrap(setting)) for case in cases], setting)


def _of_model(what: str, setting: BenchSetting, size: Size, depth: int, batch: int) -> list[Timing]:
    kind = models.ModelSize("tiny", batch, size.image, size.patch)

    def make(gains: str | None) -> Callable[[], object]:
        network = models.deit(kind, setting, gains, depth=depth, **(size.options or {}))
        return models.training_step(network, models.pixels(batch, size.image, setting), setting)

    group = _group(what, setting, size, depth, batch, mode=_mode(setting))
    cases = [
        Case(label=models.TWIN, make=partial(make, None), wrap=_wrap(setting)),
        Case(label=models.PID, make=partial(make, GAINS), wrap=_wrap(setting)),
    ]
    return measure(group, cases, setting)


def _states(setting: BenchSetting, size: Size) -> Iterator[Timing]:
    """Bytes of the state after so many layers of one model; ratios are to the first depth."""
    setting.say(STATE)
    kind = models.ModelSize("tiny", size.batch, size.image, size.patch)
    options = size.options or {}
    network: Any = models.deit(kind, setting, GAINS, depth=max(size.depths), **options).eval()
    found: dict[int, int] = {}

    def observe(depth: int, _: object, state: object) -> None:
        found[depth + 1] = state_bytes(state)

    with torch.no_grad(), setting.autocast():
        tokens = network.embed(models.pixels(size.batch, size.image, setting))
        scan_blocks(network.blocks, tokens, observe=observe)
    first = found[size.depths[0]]
    for depth in size.depths:
        group = _group(STATE, setting, size, depth, size.batch, unit="bytes", mode="")
        (row,) = rows_of(group, {models.PID: [float(found[depth])]})
        yield replace(row, ratio=found[depth] / first)


def _mode(setting: BenchSetting) -> Any:
    return "recorded" if setting.is_gpu else "eager"


def _wrap(setting: BenchSetting) -> Callable[[Callable[[], object]], Callable[[], object]] | None:
    """On a GPU a CUDA graph of the call is timed: the host's launches do not count."""
    return recorded if setting.is_gpu else None


def _group(
    what: str, setting: BenchSetting, size: Size, depth: int, batch: int, **options: Any
) -> Workload:
    return Workload(
        section="growth",
        what=what,
        sizes={"depth": depth, "batch": batch, "image": size.image, "patch": size.patch},
        dtype=name_of(setting.dtype),
        **options,
    )


def main() -> None:
    from benchmarks._growth_figure import growth_figure

    done, options = measured(__doc__, {"growth": growth})
    if options.out is not None and growth_figure(done.rows, options.out / FIGURE):
        print(f"figure {options.out / FIGURE}", file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(done.to_dict()))


if __name__ == "__main__":
    main()
