"""States without what no layer reads: the same numbers and gradients as with it."""

import pytest
import torch
from torch import nn

from pidformer import PIDGains, pid_attention
from pidformer.control.pid import (
    FirstState,
    PIDState,
    ReferenceState,
    SumlessState,
    lean_state,
    pid_step,
)
from pidformer.errors import InputError
from pidformer.nn import LearnedGains, PIDBlock, scan_blocks
from pidformer.nn.variants import VariantAttention
from pidformer.ops import epilogue, kernels, short
from tests.ops.chains import DEVICE, LIMIT, needs_kernels, ours, placed, relative
from tests.ops.test_attention import direct, layers

P, PD = PIDGains(p=0.6, beta=0.5), PIDGains(p=0.4, d=0.1, beta=0.5)
KINDS = {P: ReferenceState, PD: SumlessState}


def lean_chain(qkvs, gains, way):
    """Outputs and the last state of layers that start without a sum."""
    terms = [term for term in "pid" if getattr(gains, term)]
    outs, state = [], None
    with kernels("torch") if way == "torch" else ours(way):
        for q, k, v in qkvs:
            out, state = pid_attention(q, k, v, state, gains)
            outs.append(out)
            if type(state) is FirstState:
                state = lean_state(state, terms)
    return outs, state


@needs_kernels
@pytest.mark.parametrize("way", ["torch", "short", "epilogue"])
@pytest.mark.parametrize("gains", [P, PD], ids=["P", "PD"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_without_a_sum_the_definition_is_met(gains, way, dtype):
    if DEVICE == "cuda" and way == "short" and dtype == torch.float32:
        pytest.skip("the short kernels take halves on CUDA")
    qkvs = layers(4, heads=2, kv_heads=1, tokens=21, dim=16)
    outs, state = lean_chain(placed(qkvs, dtype), gains, way)
    for out, expected in zip(outs, direct(qkvs, gains), strict=True):
        assert relative(out, expected) < LIMIT[dtype]
    assert type(state) is KINDS[gains]
    assert not state.integral.any() and not any(state.integral.stride())
    assert (state.previous is state.initial) == (gains is P)


@needs_kernels
@pytest.mark.parametrize("way", ["torch", "short", "epilogue"])
@pytest.mark.parametrize("gains", [P, PD], ids=["P", "PD"])
def test_gradients_are_those_of_the_definition(gains, way):
    dtype = torch.float32 if DEVICE == "cpu" or way != "short" else torch.float16
    qkvs = layers(3, heads=2, tokens=9, dim=16)
    exact = [[x.double().requires_grad_() for x in layer] for layer in qkvs]
    wide = direct(exact, gains)
    weights = [torch.randn_like(out) for out in wide]
    leaves = [x for layer in exact for x in layer]
    expected = torch.autograd.grad(wide, leaves, weights)
    given = placed(qkvs, dtype, needs_grad=True)
    outs, _ = lean_chain(given, gains, way)
    found = torch.autograd.grad(
        outs, [x for layer in given for x in layer], [w.to(DEVICE, dtype) for w in weights]
    )
    for a, b in zip(found, expected, strict=True):
        assert relative(a, b) < 2 * LIMIT[dtype]


@needs_kernels
@pytest.mark.parametrize("way", ["short", "epilogue"])
def test_kernels_make_no_sum_and_read_none(way, monkeypatch):
    module, name = (short, "short_forward") if way == "short" else (epilogue, "control_forward")
    real, made = getattr(module, name), []

    def watched(*inputs):
        outputs = real(*inputs)
        made.append((inputs[5 if way == "short" else 4], outputs[1]))
        return outputs

    monkeypatch.setattr(module, name, watched)
    lean_chain(placed(layers(3, heads=2, tokens=5, dim=16), torch.float16), P, way)
    assert made[-2:] == [(None, None)] * 2


def test_a_layer_that_needs_more_refuses():
    value = torch.randn(1, 2, 3, 4)
    _, first = pid_step(value, None, P)
    with pytest.raises(InputError, match="sum of errors"):
        pid_step(value, lean_state(first, "p"), PIDGains(p=0.1, i=0.1))
    with pytest.raises(InputError, match="previous values"):
        pid_step(value, lean_state(first, "p"), PD)
    assert lean_state(first, "pi") is first


@needs_kernels
@pytest.mark.parametrize("name", ["torch", "triton"])
@pytest.mark.parametrize(
    ("gains", "kind"),
    [
        ([P, P, P], ReferenceState),
        ([P, PD, None], SumlessState),
        ([P, P, PIDGains(p=0.3, i=0.2)], PIDState),
        (["learned", P, P], ReferenceState),
    ],
    ids=["P", "PD", "a last integral", "learned"],
)
def test_networks_keep_what_some_layer_reads(gains, kind, name):
    torch.manual_seed(0)
    made = [LearnedGains(P, 2) if g == "learned" else g for g in gains]
    blocks = nn.ModuleList(PIDBlock(32, 2, g) for g in made).to(DEVICE)
    x = torch.randn(2, 5, 32, device=DEVICE, requires_grad=True)
    found = []
    with kernels(name):
        for network in (None, blocks):
            out, state = scan_blocks(blocks, x, network=network)
            weights = [x, *blocks.parameters()]
            grads = torch.autograd.grad(out.square().sum(), weights, allow_unused=True)
            found.append((out, *(g for g in grads if g is not None)))
    assert type(state) is kind
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_who_looks_sees_the_sum():
    blocks = [PIDBlock(32, 2, P) for _ in range(3)]
    seen = []
    scan_blocks(
        blocks, torch.randn(1, 5, 32), network=blocks, observe=lambda *found: seen.append(found[2])
    )
    assert seen[-1].integral.any()


def test_variants_keep_everything():
    blocks = [PIDBlock(32, 2, P, attention=VariantAttention) for _ in range(2)]
    _, state = scan_blocks(blocks, torch.randn(1, 5, 32), network=blocks)
    assert type(state) is PIDState
