"""The operator by itself: `pid_attention` against scaled dot-product attention.

Layers in a row, each with its own q, k, v, as in a model: the state goes from layer to layer, its
gradients come back, and no cache keeps what a model would have to fetch. The first layer has no
control, as in a model. A time is for one layer.
"""
# B batch, H heads, N tokens, D head dim

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

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
from pidformer.control import PIDGains, as_feedback
from pidformer.control.feedback import acting_law
from pidformer.control.gains import Gains
from pidformer.control.pid import lean_state
from pidformer.ops import pid_attention

ATTENTION, PID = "attention", "PID attention"
FLASH, COMPILED = "flash attention", "PID attention, compiled"
FORWARD, BOTH = "attention forward, a layer", "attention forward and backward, a layer"
LAWS = ("default", "laplacian", "resformer", "xsa", "0.4,0.1,0.05,0.5,implicit")
"""Relatives of PID control with rows of their own on a GPU (and P, for comparison)."""
LONG = 100
"""Tokens from which on the compiled operator is measured too."""


class OperatorSize(NamedTuple):
    """The shape of q, k and v (B, H, N, D), and how many layers there are."""

    batch: int
    heads: int
    tokens: int
    head_dim: int
    layers: int = 12


LARGE = (OperatorSize(256, 3, 197, 64), OperatorSize(512, 3, 65, 64), OperatorSize(4, 16, 4096, 64))
FEW = OperatorSize(1, 16, 256, 64)
"""Fewer heads than a GPU has multiprocessors: timed without the host, which takes longer."""
SMALL = (OperatorSize(4, 3, 65, 64, 4), OperatorSize(2, 3, 197, 64, 4))
Layers = list[tuple[Tensor, Tensor, Tensor]]


def operator(
    setting: BenchSetting, sizes: Sequence[OperatorSize] | None = None
) -> Iterator[list[Timing]]:
    """Forward, then forward and backward, for each size; on a GPU, training with few heads."""
    for size in sizes or (LARGE if setting.is_gpu else SMALL):
        if setting.is_gpu:
            torch.compiler.reset()  # it keeps few graphs of a function, and then stops compiling
        for what, is_training in ((FORWARD, False), (BOTH, True)):
            cases = contenders(size, setting, is_training)
            if setting.is_gpu:
                cases += variants(size, setting, is_training)
            yield measure(_group(what, size, setting), cases, setting)
    if setting.is_gpu and sizes is None:
        cases = [replace(case, wrap=recorded) for case in contenders(FEW, setting, True)]
        yield measure(_group(BOTH, FEW, setting, mode="recorded"), cases, setting)


def _group(what: str, size: OperatorSize, setting: BenchSetting, **more: Any) -> Workload:
    return Workload(
        section="operator",
        what=what,
        sizes=size._asdict(),
        dtype=name_of(setting.dtype),
        amount=size.layers,
        **more,
    )


def contenders(size: OperatorSize, setting: BenchSetting, is_training: bool) -> list[Case]:
    """Attention and PID attention."""
    make = partial(chain, size, setting, is_training)
    run = partial(controlled, pid_attention, PIDGains.parse(GAINS))
    return [
        Case(label=ATTENTION, make=partial(make, attend=_plain)),
        Case(label=PID, make=partial(make, attend=run)),
    ]


def variants(size: OperatorSize, setting: BenchSetting, is_training: bool) -> list[Case]:
    """The compiled operator, relatives of PID control, flash attention."""
    make = partial(chain, size, setting, is_training)
    runs: dict[str, Callable[[Layers], list[Tensor]]] = {}
    if is_training and size.tokens >= LONG:
        compiled = torch.compile(pid_attention, dynamic=False)
        runs[COMPILED] = partial(controlled, compiled, PIDGains.parse(GAINS))
    for name in (*LAWS, f"{GAINS},1,step=0.5"):
        runs[f"{ATTENTION}, {name}"] = partial(controlled, pid_attention, as_feedback(name))
    cases = [Case(label=label, make=partial(make, attend=run)) for label, run in runs.items()]
    flash = partial(make, attend=_plain, backend=SDPBackend.FLASH_ATTENTION)
    return [*cases, Case(label=FLASH, make=flash, is_optional=True)]


def _plain(layers: Layers) -> list[Tensor]:
    return [F.scaled_dot_product_attention(q, k, v) for q, k, v in layers]


def controlled(attention: Any, gains: Gains, layers: Layers) -> list[Tensor]:
    """The outputs of layers in a row, whose state goes from one to the next."""
    state, law = None, acting_law(gains)
    outs: list[Tensor] = []
    for q, k, v in layers:
        out, state = attention(q, k, v, state, gains)
        if not outs:  # a network keeps no more of it than its layers read
            state = lean_state(state, [term for term in "pid" if getattr(law, term)])
        outs.append(out)
    return outs


def chain(
    size: OperatorSize,
    setting: BenchSetting,
    is_training: bool,
    *,
    attend: Callable[[Layers], list[Tensor]],
    backend: SDPBackend | None = None,
) -> Callable[[], object]:
    """What runs `attend` on layers with random q, k, v, and their gradients if `is_training`."""
    generator = torch.Generator(setting.device).manual_seed(setting.seed)

    def draw() -> Tensor:  # (B, N, H, D) in memory, as a projection leaves it
        shape = (size.batch, size.tokens, size.heads, size.head_dim)
        drawn = torch.randn(shape, generator=generator, device=setting.device)
        return drawn.to(setting.dtype).transpose(1, 2)

    layers = [(draw(), draw(), draw()) for _ in range(size.layers)]
    leaves = [tensor.requires_grad_(is_training) for layer in layers for tensor in layer]
    upstream = draw()

    def run() -> object:
        chosen = nullcontext() if backend is None else sdpa_kernel(backend)
        with chosen, torch.set_grad_enabled(is_training):
            outs = attend(layers)
            if not is_training:
                return outs
            return torch.autograd.grad(outs, leaves, [upstream] * len(outs))

    return run
