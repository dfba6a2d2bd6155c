"""Launches that skip Triton's own binding: only where it would decide the same again."""

from functools import partial

import pytest
import torch

from pidformer.ops import dispatch, launch, short

TILES = dispatch.Tiles(rows=16, keys=16, warps=2, stages=1)


class Kernel:
    """Notes who launched what: Triton's way, or the compiled kernel directly."""

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        def run(*arguments, **options):
            self.calls.append(("triton", grid, arguments, options))
            return Compiled(self.calls)

        return run


class Compiled:
    def __init__(self, calls):
        self.calls = calls

    def __getitem__(self, grid):
        return lambda *arguments: self.calls.append(("direct", grid, arguments, {}))


@pytest.fixture
def kernel(monkeypatch):
    """As if CPU tensors were on the current CUDA device."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(launch, "is_interpreted", lambda: False)
    monkeypatch.setattr(launch, "_compiled", {})
    monkeypatch.setenv("PIDFORMER_LAUNCH", "direct")
    return Kernel()


def go(kernel, x, *, strides=(4, 1), numbers=(0.5,), sizes=(3,), constants=(16, True), more=None):
    launch.launch(kernel, 7, (x, more), strides, numbers, sizes, constants, TILES)
    return kernel.calls[-1]


def test_the_second_launch_is_direct_with_the_same_arguments(kernel):
    x = torch.zeros(64)
    how, grid, arguments, options = go(kernel, x)
    assert (how, grid, options) == ("triton", (7,), {"num_warps": 2, "num_stages": 1})
    assert arguments[0] is x and arguments[1:] == (None, 4, 1, 0.5, 3, 16, True)
    how, grid, arguments, _ = go(kernel, x, numbers=(0.25,))  # numbers are no part of the kernel
    assert (how, grid) == ("direct", (7, 1, 1))
    assert arguments == (x.data_ptr(), None, 4, 1, 0.25, 3, 16, True)


@pytest.mark.parametrize(
    "other",
    [
        {"strides": (5, 1)},
        {"sizes": (4,)},
        {"constants": (32, True)},
        {"more": torch.zeros(4)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_what_triton_would_look_at_is_looked_at(kernel, other):
    x = torch.zeros(64)
    assert [go(kernel, x)[0], go(kernel, x)[0]] == ["triton", "direct"]
    assert go(kernel, x, **other)[0] == "triton"
    assert go(kernel, x.double())[0] == "triton"
    assert go(Kernel(), x)[0] == "triton"
    assert go(kernel, x)[0] == "direct"


def test_other_tiles_are_another_kernel(kernel, monkeypatch):
    """As when tiles are tried one after the other: warps and stages are in no constant."""
    x = torch.zeros(64)
    assert [go(kernel, x)[0], go(kernel, x)[0]] == ["triton", "direct"]
    other = dispatch.Tiles(rows=16, keys=16, warps=4, stages=1)
    monkeypatch.setitem(go.__globals__, "TILES", other)
    how, _, _, options = go(kernel, x)
    assert how == "triton" and options["num_warps"] == 4


def test_nobody_who_did_not_ask_launches_directly(kernel, monkeypatch):
    monkeypatch.delenv("PIDFORMER_LAUNCH")
    x = torch.zeros(64)
    assert [go(kernel, x)[0], go(kernel, x)[0]] == ["triton", "triton"]


def test_tensors_off_the_16_bytes_are_left_to_triton(kernel):
    x = torch.zeros(65)
    go(kernel, x)
    assert go(kernel, x[1:])[0] == "triton" == go(kernel, x[1:])[0]
    assert go(kernel, x)[0] == "direct"


def test_a_triton_that_takes_other_arguments_is_asked_itself(kernel, monkeypatch):
    x = torch.zeros(64)
    go(kernel, x)
    monkeypatch.setattr(Compiled, "__getitem__", lambda self, grid: lambda: None)
    assert go(kernel, x)[0] == "triton"


def test_shapes_that_never_end_do_not_fill_the_memory(kernel, monkeypatch):
    monkeypatch.setattr(launch, "MOST", 3)
    x = torch.zeros(64)
    for size in range(10):
        go(kernel, x, sizes=(size,))
        assert len(launch._compiled) <= 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_direct_launch_gives_the_same_bits(monkeypatch):
    from pidformer import pid_attention
    from tests.ops.chains import GAINS

    def run():
        torch.manual_seed(0)
        state, outs, leaves = None, [], []
        for _ in range(3):
            q, k, v = torch.randn(3, 2, 3, 65, 64, device="cuda").bfloat16().requires_grad_()
            leaves.append((q, k, v))
            out, state = pid_attention(q, k, v, state, GAINS)
            outs.append(out)
        return *outs, *torch.autograd.grad([o.sum() for o in outs], [x for y in leaves for x in y])

    monkeypatch.setattr(launch, "_compiled", {})
    by_triton = run()
    assert not launch._compiled
    monkeypatch.setenv("PIDFORMER_LAUNCH", "direct")
    for _ in range(2):  # compiled, then launched directly
        assert all(map(torch.equal, run(), by_triton))
    assert launch._compiled


@pytest.mark.parametrize("asked", [None, "0", "1"])
def test_a_prefetch_is_asked_for_and_never_of_the_interpreter(asked, monkeypatch):
    if asked is None:
        monkeypatch.delenv("PIDFORMER_PREFETCH", raising=False)
    else:
        monkeypatch.setenv("PIDFORMER_PREFETCH", asked)
    seen = []
    monkeypatch.setattr(short, "launch", lambda *given: seen.append(given[6][-1]))
    q = torch.zeros(1, 1, 4, 16)
    for is_interpreted in (True, False):
        monkeypatch.setattr(dispatch, "is_interpreted", partial(bool, is_interpreted))
        short.short_forward.function(
            q, q, q, None, None, None, None, 0.0, 0.0, 0.0, 1.0, 0.25, False, False, False
        )
    assert seen == [False, asked == "1"]
