"""The floor on paper: bytes of one attention layer with control, and the time they take at least.

    python -m benchmarks floor [--json]

A stream is one tensor of the values' shape, read or written once. At these sizes attention and
control are bound by memory, so streams x bytes / bandwidth is the least time; what a cache keeps
between kernels can beat it. v_{l-1} is called `v_prev`, g is the gradient of the output u.

Leaner algebra: with T_0 = (p + i) beta v_0,

    T_l = T_{l-1} + i beta v_0 - i v_l,    c_l = T_l + d v_l
    u_l = y_l + c_{l-1} - (p + i + d) v_l

which is the same control with one sum instead of sum and reference term (p, i, d of c_{l-1} are
layer l's). Backward, with K_l = g_{l+1} + K_{l+1}: dv_l = -(p + i + d) g_l + d g_{l+1} - i K_l and
dv_0 = (p + i) beta K_0 + i beta (K_1 + K_2 + ...): gradients alone, nothing kept from the forward.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from rich.table import Table

from pidformer.cli.options import tables

SUMS = frozenset({"S", "T", "G", "K", "dv_0"})
"""Streams that run over depth: in float32, or in the values' type."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One attention layer; the defaults are DeiT-tiny/16-224, batch 256, bfloat16."""

    batch: int = 256
    heads: int = 3
    tokens: int = 197
    head_dim: int = 64
    value_bytes: int = 2

    @property
    def elements(self) -> int:
        return self.batch * self.heads * self.tokens * self.head_dim

    @property
    def tensor_bytes(self) -> int:
        return self.elements * self.value_bytes

    @property
    def row_bytes(self) -> int:
        """A float32 for each row of the attention matrix: its log-sum, or its delta."""
        return 4 * self.batch * self.heads * self.tokens


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Datasheet of an H200 SXM."""

    bytes_per_second: float = 4.8e12
    matrix_flops: float = 989e12
    """bfloat16, dense."""
    vector_flops: float = 67e12
    """float32."""


class Step(NamedTuple):
    """Milliseconds that a step of the softmax twin takes: DeiT-tiny/16-224, batch 256, on an H200.

    Measured with a prototype; give others to `floor` to see what they would make of the ratios.
    """

    training: float = 17.2
    inference: float = 4.86


class Plan(NamedTuple):
    """A way to compute the control: what it reads and writes beyond plain attention."""

    name: str
    forward: tuple[str, ...]
    backward: tuple[str, ...]
    training: tuple[str, ...] = ()
    """Forward streams that only training needs."""


SEPARATE = Plan(
    "a separate pass",
    forward=("y", "v", "v_0", "v_prev", "S", "-> u", "-> S"),
    backward=("g", "G", "dv_prev", "dv", "dv_0", "-> G", "-> dv_prev", "-> dv", "-> dv_0"),
)
FUSED = Plan(
    "in attention's kernel",
    forward=("v_0", "v_prev", "S", "-> S"),
    backward=("G", "dv_prev", "dv_0", "-> G", "-> dv_prev", "-> dv_0"),
    training=("-> y",),  # attention's backward needs y beside u
)
LEAN = Plan(
    "in attention's kernel, leaner algebra",
    forward=("v_0", "v_prev", "T", "-> T"),
    backward=("K", "g_next", "dv_0", "-> K", "-> dv_0"),
    training=("-> y",),
)
PLANS = (SEPARATE, FUSED, LEAN)
DEPTH, CONTROLLED = 12, 11
"""Layers of a DeiT, and those with control: the first has none."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan costs at least; bytes and microseconds per layer, milliseconds for 12 layers."""

    plan: str
    sums: str
    """Type of the streams that run over depth."""
    forward_bytes: int
    backward_bytes: int
    forward_us: float
    backward_us: float
    training_ms: float
    inference_ms: float
    training_ratio: float
    inference_ratio: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def stream_bytes(streams: Iterable[str], layer: Layer, sum_bytes: int) -> int:
    """Bytes of streams, each a tensor of the values' shape."""
    names = [name.removeprefix("-> ") for name in streams]
    wide = sum(name in SUMS for name in names)
    return layer.elements * ((len(names) - wide) * layer.value_bytes + wide * sum_bytes)


def estimate(
    plan: Plan,
    sums: str = "float32",
    *,
    layer: Layer | None = None,
    machine: Machine | None = None,
    step: Step | None = None,
) -> Estimate:
    """Streams to bytes to seconds; in training the forward counts with what training needs."""
    layer, machine, step = layer or Layer(), machine or Machine(), step or Step()
    width = 4 if sums == "float32" else layer.value_bytes
    inferring = stream_bytes(plan.forward, layer, width)
    forward = stream_bytes((*plan.forward, *plan.training), layer, width)
    backward = stream_bytes(plan.backward, layer, width)
    us = {
        name: 1e6 * count / machine.bytes_per_second
        for name, count in (("infer", inferring), ("forward", forward), ("backward", backward))
    }
    training_ms = CONTROLLED * (us["forward"] + us["backward"]) / 1e3
    inference_ms = CONTROLLED * us["infer"] / 1e3
    return Estimate(
        plan=plan.name,
        sums=sums,
        forward_bytes=forward,
        backward_bytes=backward,
        forward_us=us["forward"],
        backward_us=us["backward"],
        training_ms=training_ms,
        inference_ms=inference_ms,
        training_ratio=1 + training_ms / step.training,
        inference_ratio=1 + inference_ms / step.inference,
    )


class Attention(NamedTuple):
    """Plain attention of one layer: bytes, operations, and the microseconds of each."""

    direction: str
    bytes: int
    bytes_us: float
    flops: float
    flops_us: float


def attention_floor(
    layer: Layer | None = None, machine: Machine | None = None
) -> tuple[Attention, Attention]:
    """Forward reads q, k, v and writes y and a log-sum per row: two products of 2 N^2 D operations.

    Backward reads q, k, v, y, dy and the log-sums, writes and reads a delta per row, writes dq, dk,
    dv, and does five products, of which one makes the attention matrix again.
    """
    layer, machine = layer or Layer(), machine or Machine()
    product = 2.0 * layer.batch * layer.heads * layer.tokens**2 * layer.head_dim
    found = []
    for direction, tensors, rows, products in (("forward", 4, 1, 2), ("backward", 8, 3, 5)):
        count = tensors * layer.tensor_bytes + rows * layer.row_bytes
        flops = products * product
        found.append(
            Attention(
                direction,
                count,
                1e6 * count / machine.bytes_per_second,
                flops,
                1e6 * flops / machine.matrix_flops,
            )
        )
    return found[0], found[1]


def estimates(step: Step | None = None) -> list[Estimate]:
    """Every plan, sums in float32 and in bfloat16."""
    return [estimate(plan, sums, step=step) for plan in PLANS for sums in ("float32", "bfloat16")]


def floor() -> dict[str, Any]:
    """All of it, for machines."""
    layer = Layer()
    return {
        "layer": asdict(layer) | {"tensor_bytes": layer.tensor_bytes},
        "machine": asdict(Machine()),
        "twin_ms": Step()._asdict(),
        "attention": [found._asdict() for found in attention_floor()],
        "plans": [
            found.to_dict() | {"forward": plan.forward + plan.training, "backward": plan.backward}
            for plan in PLANS
            for found in (estimate(plan, sums) for sums in ("float32", "bfloat16"))
        ],
        "kept_bytes": CONTROLLED * layer.tensor_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    if parser.parse_args().json:
        print(json.dumps(floor()))
        return
    console, layer, step = tables(), Layer(), Step()
    console.print(
        f"DeiT-tiny/16-224, batch {layer.batch}: a tensor is {layer.tensor_bytes / 1e6:.1f} MB; "
        f"{Machine().bytes_per_second / 1e12:g} TB/s; the twin takes {step.training:g} ms per "
        f"training step and {step.inference:g} ms per inference",
        highlight=False,
    )
    table = Table("plain attention, per layer", "MB", "us", "GFLOP", "us")
    for part in attention_floor():
        numbers = (part.bytes / 1e6, part.bytes_us, part.flops / 1e9, part.flops_us)
        table.add_row(part.direction, *(f"{number:.1f}" for number in numbers))
    console.print(table)
    headings = ("forward MB", "us", "backward MB", "us", "training ms", "ratio", "inference ms")
    table = Table("control", "sums", *headings, "ratio")
    for one in estimates():
        forward, backward = one.forward_bytes / 1e6, one.backward_bytes / 1e6
        table.add_row(
            one.plan,
            one.sums,
            *(f"{n:.1f}" for n in (forward, one.forward_us, backward, one.backward_us)),
            f"{one.training_ms:.3f}",
            f"{one.training_ratio:.3f}",
            f"{one.inference_ms:.3f}",
            f"{one.inference_ratio:.3f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
