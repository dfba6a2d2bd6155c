"""Long sequences: does one kernel with attention and control beat SDPA and a pass of ours?

    python -m benchmarks long [--device cuda] [--rounds 7] [--out DIR] [--json]

1,024 to 16,384 tokens, as many in a batch each time; layers in a row, all of them controlled, on a
GPU without the host's time. The contenders: SDPA; PID attention (SDPA and our pass); compiled
FlexAttention; FlexAttention and the control compiled as one, which Inductor may put into
attention's own kernel. Whether it did is in a row's note: the kernels that it wrote for a layer.

Outputs and gradients are compared with float64 first, at the fewest tokens. If FlexAttention is
off, its row is left out; if PID attention is, the run ends.
"""
# B batch, H heads, N tokens, D head dim

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.graph import GraphLowering
from torch.nn.attention.flex_attention import flex_attention

from benchmarks._measure import measured
from benchmarks.kernel_checks import LIMIT, relative
from pidformer.bench.operator import ATTENTION, BOTH, FORWARD, PID, Layers, OperatorSize, chain
from pidformer.bench.timing import (
    GAINS,
    BenchSetting,
    Case,
    Timing,
    Workload,
    measure,
    name_of,
    recorded,
)
from pidformer.control import PIDGains, PIDState
from pidformer.ops import pid_attention
from pidformer.ops.attention import feed_back

FLEX, FLEX_PID = "FlexAttention", "FlexAttention and control"
CONTROLLED = ", all controlled"
CONTROL = PIDGains.parse(GAINS)
LARGE = tuple(OperatorSize(16384 // n, 16, n, 64, 4) for n in (1024, 4096, 16384, 2048, 8192))
SMALL = (OperatorSize(2, 2, 64, 16, 3),)
Attention = Callable[[Tensor, Tensor, Tensor, PIDState], tuple[Tensor, PIDState]]
KERNEL = re.compile(r"^(\w+) = async_compile\.", re.MULTILINE)
"""Where Inductor's code makes a kernel."""


def _sdpa(q: Tensor, k: Tensor, v: Tensor, state: PIDState) -> tuple[Tensor, PIDState]:
    return F.scaled_dot_product_attention(q, k, v), state


def _pid(q: Tensor, k: Tensor, v: Tensor, state: PIDState) -> tuple[Tensor, Any]:
    return pid_attention(q, k, v, state, CONTROL)


def _flex(q: Tensor, k: Tensor, v: Tensor, state: PIDState) -> tuple[Any, PIDState]:
    return flex_attention(q, k, v), state


def _flex_pid(q: Tensor, k: Tensor, v: Tensor, state: PIDState) -> tuple[Tensor, PIDState]:
    """Sums in the values' type, as those of our kernels."""
    out, after = feed_back(flex_attention(q, k, v), v, state, CONTROL)
    assert after is not None
    initial, integral, previous = after
    # not `after._replace`: the compiler of torch 2.11 cannot return what it makes
    return out, PIDState(initial, integral.to(v.dtype), previous)


def _exact(q: Tensor, k: Tensor, v: Tensor, state: PIDState) -> tuple[Tensor, PIDState]:
    """PID attention in float64, its output rounded."""
    wide = PIDState(*(x.double() for x in state))
    out, after = _pid(q.double(), k.double(), v.double(), wide)
    return out.to(q.dtype), after


ATTENTIONS: dict[str, Attention] = {ATTENTION: _sdpa, PID: _pid, FLEX: _flex, FLEX_PID: _flex_pid}


def long(
    setting: BenchSetting, sizes: Sequence[OperatorSize] | None = None
) -> Iterator[list[Timing]]:
    """Forward, then forward and backward, for each size."""
    sizes = sizes or (LARGE if setting.is_gpu else SMALL)
    for size, is_training in product(sizes, (False, True)):
        torch.compiler.reset()  # it keeps few graphs of a function, and then stops compiling
        made: dict[str, list[str]] = {}
        kinds = (size, setting, is_training, made, size == sizes[0])
        cases = [
            Case(
                label=label,
                make=partial(_make, label, *kinds),
                is_optional=label in (FLEX, FLEX_PID),
                wrap=recorded if setting.is_gpu else None,
            )
            for label in ATTENTIONS
        ]
        group = Workload(
            section="long",
            what=f"{BOTH if is_training else FORWARD}{CONTROLLED}",
            sizes=size._asdict(),
            dtype=name_of(setting.dtype),
            mode="recorded" if setting.is_gpu else "eager",
            amount=size.layers,
        )
        rows = measure(group, cases, setting)
        yield [replace(row, note=row.note or ", ".join(made.get(row.label, ()))) for row in rows]


def _make(
    label: str,
    size: OperatorSize,
    setting: BenchSetting,
    is_training: bool,
    made: dict[str, list[str]],
    is_checked: bool,
) -> Callable[[], object]:
    """What runs the layers; says which kernels were made for it, and refuses what is wrong."""
    attention = ATTENTIONS[label]
    if label in (FLEX, FLEX_PID):
        attention = torch.compile(attention, dynamic=False)
    run = _chain(attention, size, setting, is_training)
    codes: list[str] = []
    with mock.patch.object(GraphLowering, "save_output_code", codes.append):
        found = run()
    made[label] = [name for code in codes for name in KERNEL.findall(code)]
    if is_checked and label in (PID, FLEX_PID):
        exact = _chain(_exact, size, setting, is_training)()
        off = max(map(relative, found, exact))
        if not off < (4 if is_training else 2) * LIMIT[setting.dtype]:
            raise ArithmeticError(f"off float64 by {off:.1e}")
    return run


def _chain(
    attention: Attention, size: OperatorSize, setting: BenchSetting, is_training: bool
) -> Callable[[], Any]:
    generator = torch.Generator(setting.device).manual_seed(setting.seed + 1)
    shape = (2, size.batch, size.tokens, size.heads, size.head_dim)
    drawn = torch.randn(shape, generator=generator, device=setting.device).to(setting.dtype)
    integral, previous = (x.requires_grad_(is_training) for x in drawn.transpose(2, 3).unbind())

    def attend(layers: Layers) -> list[Tensor]:
        """Every layer finds a state like any other's, so that one graph serves them all."""
        initial = layers[0][2]
        state, outs = PIDState(initial.view_as(initial), integral, previous), []
        for layer in layers:
            out, state = attention(*layer, state)
            outs.append(out)
        return outs

    return chain(size, setting, is_training, attend=attend)


def main() -> None:
    done, options = measured(__doc__, {"long": long})
    if options.json:
        print(json.dumps(done.to_dict()))


if __name__ == "__main__":
    main()
