"""The kernels by themselves: are they right, how long do they take, which tiles are best.

    python -m benchmarks.kernels [SECTION...]       check and time, if none is named
    python -m benchmarks.kernels check 2/3          cases 2, 5, 8 and so on
    python -m benchmarks.kernels time tune 65       shapes of 65 tokens only

All need a CUDA device but `check` and `laws`, which take a few small cases on a CPU with
TRITON_INTERPRET=1. `ceilings` measures what this device copies and multiplies at most. `check`
compares outputs and gradients with float64 on fresh random numbers and fails loudly; laws beyond
PID come last, but `check 2/3` leaves them to `laws`. `time` gives the median ms of a controlled
layer, forward and with backward. `tune` times the tiles of `short_attention` one by one, if their
numbers are those of SDPA and the epilogue; the best belong into `ops/dispatch.py`. `gelu` does all
three for `bias_gelu`, beside Inductor's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from benchmarks.kernel_checks import DEVICE, GAINS, LIMIT, check, check_laws, relative
from pidformer.bench.timing import recorded
from pidformer.control import PIDGains, PIDState
from pidformer.control.pid import pid_step
from pidformer.ops import dispatch, epilogue, gelu, short
from pidformer.ops.attention import add_control
from pidformer.ops.dispatch import Tiles

SHAPES = (
    (256, 3, 197, 64),
    (512, 3, 65, 64),
    (256, 6, 197, 64),
    (256, 12, 197, 64),
    (8, 16, 1024, 64),
    (4, 16, 4096, 64),
)
STEPS, ROUNDS = 5, 9  # steps a graph, replays of it


def main() -> None:
    part = None
    for word in sys.argv[1:]:
        if "/" in word:
            place, parts = map(int, word.split("/"))
            part = place, parts
    sections: dict[str, Callable[[], None]] = {
        "ceilings": ceilings,
        "check": partial(check, part),
        "laws": check_laws,
        "time": timings,
        "tune": tune,
        "gelu": gelus,
    }
    names = [word for word in sys.argv[1:] if not word[0].isdigit()]
    asked = names or ["check", "time"]
    if wrong := [name for name in asked if name not in sections]:
        sys.exit(f"unknown section {wrong[0]!r}; known: {', '.join(sections)}")
    if DEVICE == "cpu" and not ({*asked} <= {"check", "laws"} and dispatch.is_interpreted()):
        sys.exit(
            "benchmarks.kernels needs a CUDA device; `check` and `laws` run with TRITON_INTERPRET=1"
        )
    name = "Triton's interpreter" if DEVICE == "cpu" else torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}\n", flush=True)
    for name in asked:
        sections[name]()


def ceilings() -> None:
    """What the device reaches at most: bytes read and written per second, operations per second."""
    source = torch.randn(2**30, device="cuda")
    target = torch.empty_like(source)
    spent = _time_of(partial(target.copy_, source))
    print(f"copy: {2 * source.nbytes / spent / 1e9:.2f} TB/s, read and written")
    one, two = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    spent = _time_of(partial(torch.mm, one, two))
    print(f"matrix product, bfloat16: {2 * 8192**3 / spent / 1e9:.0f} TFLOP/s", flush=True)


# How long do they take?


def timings() -> None:
    """Medians of one controlled layer inside a network: all inputs, and the state, have grads."""
    print("\n| shape | step | way | ms | to SDPA |\n|---|---|---|---|---|")
    for shape in filter(_is_asked, SHAPES):
        for with_backward in (False, True):
            base = None
            for label, make in _ways(shape).items():
                try:
                    spent = _time(make, shape, with_backward)
                except Exception as error:
                    print(f"| {shape} | | {label} | {type(error).__name__}: {str(error)[:200]} | |")
                    continue
                base = base or spent
                step = "forward + backward" if with_backward else "forward"
                print(
                    f"| {shape} | {step} | {label} | {spent:.4f} | {spent / base:.2f} |", flush=True
                )
    print(flush=True)


def _is_asked(shape: tuple[int, ...]) -> bool:
    tokens = {int(word) for word in sys.argv[1:] if word.isdigit()}
    return not tokens or shape[2] in tokens


def _ways(shape: tuple[int, ...]) -> dict[str, Callable[..., tuple[Tensor, ...]]]:
    heads, tokens = shape[1], shape[2]

    def plain(qkv: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        return (sdpa(*short.split_heads(qkv, heads)),)

    def torch_control(qkv: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        q, k, v = short.split_heads(qkv, heads)
        control, after = pid_step(v, PIDState(*state), GAINS)
        return add_control(sdpa(q, k, v), control), after.integral, v, after.initial

    def behind(qkv: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        q, k, v = short.split_heads(qkv, heads)
        out, after = epilogue.control(sdpa(q, k, v), v, PIDState(*state), GAINS)
        return out, after.integral, after.previous, after.initial

    def alone(qkv: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        return short.short_attention((qkv, None, None), heads, None, None)[:1]

    def fused(qkv: Tensor, *state: Tensor, gains: PIDGains = GAINS) -> tuple[Tensor, ...]:
        out, v, after = short.short_attention((qkv, None, None), heads, PIDState(*state), gains)
        assert after is not None
        return out, after.integral, v, after.initial

    ways = {
        "SDPA": plain,
        "SDPA + control, compiled": torch.compile(torch_control, dynamic=False),
        "SDPA + epilogue": behind,
    }
    if tokens <= dispatch.LONGEST:
        ways |= {
            "short": alone,
            "short + control": fused,
            "short + P": partial(fused, gains=PIDGains(p=0.8, i=0, d=0, beta=0.1)),
        }
    return ways


def _time(
    make: Callable[..., tuple[Tensor, ...]], shape: tuple[int, ...], with_backward: bool
) -> float:
    """ms of the GPU: steps recorded as a CUDA graph, so that launches do not count."""
    inputs = _inputs(shape, with_backward)
    pull: list[Tensor] = []

    def step() -> None:
        outs = make(*inputs)
        if not pull:
            pull.extend(torch.randn_like(x) for x in outs)
        if with_backward:
            torch.autograd.grad(
                outs, inputs if len(outs) > 1 else inputs[:1], pull, allow_unused=True
            )

    with torch.set_grad_enabled(with_backward):
        return _time_of(step)


def _time_of(step: Callable[[], object]) -> float:
    """Median ms of a step, recorded as a CUDA graph of a few."""

    def steps() -> None:
        for _ in range(STEPS):
            step()

    replay, times = recorded(steps), []
    for _ in range(ROUNDS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / STEPS)
    return median(times[1:])


def _inputs(shape: tuple[int, ...], with_backward: bool) -> list[Tensor]:
    """Packed q, k, v; first values, sum of errors and previous values."""
    batch, heads, tokens, dim = shape
    qkv = torch.randn(batch, tokens, 3 * heads, dim, device="cuda", dtype=torch.bfloat16)
    rows = [torch.randn(batch, tokens, heads, dim, device="cuda") for _ in range(3)]
    initial, integral, previous = (x.transpose(1, 2) for x in rows)
    sums = dispatch.sums_type(qkv, None)
    inputs = [qkv, initial.bfloat16(), integral.to(sums), previous.bfloat16()]
    return [x.requires_grad_(with_backward) for x in inputs]


# GELU with its bias

GELU_TILES = tuple(
    (chunk, Tiles(rows=rows, keys=columns, warps=warps, stages=stages))
    for chunk, rows, columns, warps, stages in (
        *itertools.product((64, 128, 256), (16,), (256,), (4,), (2,)),
        *((128, 8, 256, 4, 2), (128, 32, 256, 8, 2), (128, 32, 128, 4, 2), (128, 16, 256, 4, 1)),
        *((128, 16, 256, 8, 2), (128, 8, 256, 2, 3), (128, 4, 1024, 4, 2), (64, 16, 128, 4, 3)),
    )
)


def gelus() -> None:
    """`bias_gelu` of DeiT-tiny's hidden rows (64 pixels, batch 512): right, and how fast."""
    shape = (512, 65, 768)

    def inductor(x: Tensor, bias: Tensor) -> Tensor:
        return F.gelu(x + bias).to(x.dtype)

    print("\n| way | chunk, tiles | error | forward ms | with backward ms |\n|---|---|---|---|---|")
    _gelu_row("Inductor", torch.compile(inductor, dynamic=False), shape, "")
    for chunk, tiles in GELU_TILES:
        with dispatch.kernels("triton"), mock.patch.multiple(gelu, CHUNK=chunk, TILES=tiles):
            _gelu_row("ours", gelu.bias_gelu, shape, f"{chunk}, {tiles}")


def _gelu_row(name: str, way: Callable[..., Tensor], shape: tuple[int, ...], label: str) -> None:
    made = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    (x, grad), bias = made, torch.randn(shape[-1], device="cuda", requires_grad=True)
    x.requires_grad_()
    wide = [t.detach().double().requires_grad_() for t in (x, bias)]

    def step(x: Tensor = x, bias: Tensor = bias) -> tuple[Tensor, ...]:
        out = way(x, bias)
        return out, *torch.autograd.grad(out, (x, bias), grad)

    try:
        exact = F.gelu(wide[0] + wide[1])
        expected = (exact, *torch.autograd.grad(exact, wide, grad.double()))
        error = max(map(relative, step(), expected))
        with torch.no_grad():
            forward = _time_of(lambda: way(x, bias))
        print(f"| {name} | {label} | {error:.1e} | {forward:.4f} | {_time_of(step):.4f} |")
    except Exception as error:
        print(f"| {name} | {label} | {type(error).__name__}: {str(error)[:200]} | | |")
    sys.stdout.flush()


# Which tiles?


FORWARD_TILES = tuple(
    Tiles(rows=rows, keys=keys, warps=warps, stages=stages, parts=parts)
    for rows, keys, warps, stages, parts in (
        *itertools.product((64,), (32, 64), (4,), (1, 2, 3), (2,)),
        *itertools.product((64, 128), (128,), (4, 8), (2,), (2,)),
        *itertools.product((128,), (64,), (8,), (1, 2, 3), (2,)),
        *((64, 64, 4, 2, 1), (64, 64, 4, 2, 4), (32, 64, 4, 2, 1), (32, 64, 2, 2, 2)),
    )
)
BACKWARD_TILES = tuple(
    Tiles(rows=rows, keys=256, warps=warps, stages=stages, turned=turned, lean=lean)
    for rows, warps, stages, turned, lean in (
        *itertools.product((16, 32), (8,), (1, 2), (True, False), (False,)),
        *itertools.product((64,), (8,), (1, 2), (True,), (False,)),
        *itertools.product((32, 64), (16,), (1,), (True, False), (False,)),
        *itertools.product((32,), (8, 16), (1, 2), (True,), (True,)),
    )
)
# One token more than a power of two.
FORWARD_TILES_65 = tuple(
    Tiles(rows=rows, keys=keys, warps=warps, stages=stages, parts=parts)
    for rows, keys, warps, stages, parts in (
        *((64, 64, 4, 2, 2), (64, 64, 4, 1, 2), (64, 64, 4, 1, 4), (64, 16, 4, 2, 4)),
        *((128, 64, 8, 1, 2), (128, 64, 8, 2, 2), (128, 64, 4, 1, 2)),
        *((32, 64, 4, 2, 1), (32, 64, 2, 2, 2), (32, 64, 1, 2, 2), (32, 16, 1, 2, 2)),
        *((16, 64, 1, 2, 2), (16, 64, 2, 2, 1), (16, 32, 1, 1, 2), (16, 16, 1, 2, 2)),
    )
)
BACKWARD_TILES_65 = tuple(
    Tiles(rows=rows, keys=keys, tail=tail, warps=warps, stages=stages, lean=lean)
    for keys, tail, rows, warps, stages, lean in (
        *itertools.product((64,), (16,), (16, 32, 64), (4,), (1, 2), (True,)),
        *((64, 16, 16, 4, 1, False), (64, 16, 16, 2, 1, True), (64, 16, 32, 8, 1, True)),
        *itertools.product((128,), (0,), (16, 32), (8,), (1, 2), (False, True)),
    )
)


def tune() -> None:
    """`short_attention` with control, tiles by tiles; the ten best of each shape."""
    for shape, forward, backward in (
        ((256, 3, 197, 64), FORWARD_TILES, BACKWARD_TILES),
        ((512, 3, 65, 64), FORWARD_TILES_65, BACKWARD_TILES_65),
        ((256, 12, 197, 64), FORWARD_TILES, BACKWARD_TILES),
    ):
        if not _is_asked(shape):
            continue
        fused = _ways(shape)["short + control"]
        found = [(_try(fused, shape, False, forward_tiles=tiles), tiles) for tiles in forward]
        _print_best(f"{shape} forward", found)
        found = [(_try(fused, shape, True, backward_tiles=tiles), tiles) for tiles in backward]
        _print_best(f"{shape} forward + backward", found)


def _try(
    make: Callable[..., tuple[Tensor, ...]],
    shape: tuple[int, ...],
    with_backward: bool,
    **tiles: Tiles,
) -> float:
    expected = _numbers(_ways(shape)["SDPA + epilogue"], shape, with_backward)
    try:
        with _tiles(**tiles):
            off = relative(_numbers(make, shape, with_backward), expected.double())
            if not off < 2 * LIMIT[torch.bfloat16]:
                raise ArithmeticError(f"off by {off:.1e}")
            return _time(make, shape, with_backward)
    except Exception as error:
        print(f"    {tiles}: {type(error).__name__}: {str(error)[:120]}", flush=True)
        return float("inf")


def _numbers(
    make: Callable[..., tuple[Tensor, ...]], shape: tuple[int, ...], with_backward: bool
) -> Tensor:
    """The output or, with backward, the gradient of q, k, v; of the same inputs every time."""
    torch.manual_seed(0)
    inputs = _inputs(shape, with_backward)
    with torch.set_grad_enabled(with_backward):
        outs = make(*inputs)
    if not with_backward:
        return outs[0]
    pull = [torch.randn_like(x) for x in outs]  # the layout that `_time` gives back, too
    return torch.autograd.grad(outs, inputs[:1], pull)[0]


@contextlib.contextmanager
def _tiles(**tiles: Tiles) -> Iterator[None]:
    """Within this block these tiles and no others, whatever was decided for a size before."""
    with contextlib.ExitStack() as stack:
        for name in ("_forward_plan", "_backward_plan"):  # which keep what they decide
            plan = getattr(short, name)
            stack.enter_context(mock.patch.object(short, name, plan.__wrapped__))
        for name, chosen in tiles.items():
            stack.enter_context(mock.patch.object(dispatch, name, lambda *_, c=chosen: c))
        yield


def _print_best(title: str, found: list[tuple[float, Tiles]]) -> None:
    names = [field.name for field in dataclasses.fields(Tiles)]
    print(f"\n{title}\n\n| ms | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for spent, tiles in sorted(found, key=lambda pair: pair[0])[:10]:
        cells = (str(getattr(tiles, name)) for name in names)
        print(f"| {spent:.4f} | {' | '.join(cells)} |")
    print(flush=True)


if __name__ == "__main__":
    main()
