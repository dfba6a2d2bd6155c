"""The control by PyTorch's kernels in few passes, against `pid_step` operation by operation."""

import copy

import pytest
import torch

from pidformer import PIDGains, pid_attention
from pidformer.control.pid import lean_state
from pidformer.ops import attention, kernels, plain
from tests.ops.test_attention import layers

GAINS = [
    PIDGains(p=0.8, i=0.5, d=0.05, beta=0.1),
    PIDGains(p=0.4, i=0.1),
    PIDGains(i=0.3, d=0.2, beta=0.5),
    PIDGains(p=0.6, d=0.1, beta=0.5),
    PIDGains(p=0.6),
    PIDGains(),
]


@pytest.fixture(autouse=True)
def _on_pytorch():
    with kernels("torch"):
        yield


def chain(qkvs, gains, patch=None, lean=False):
    """Outputs and states of all layers; without `plain` where a patch is given."""
    if patch is not None:
        patch.setattr(plain, "takes", lambda *_: False)
    state, outs = None, []
    for q, k, v in qkvs:
        out, state = pid_attention(q, k, v, state, gains)
        if lean and not outs:
            state = lean_state(state, [t for t in "pid" if getattr(gains, t)])
        outs.append(out)
    return outs, state


def leaves(dtype=torch.float64, kv_heads=2, needs_grad=True):
    drawn = layers(4, heads=4, kv_heads=kv_heads, dtype=dtype)
    return [[x.requires_grad_(needs_grad) for x in layer] for layer in drawn]


def flat(given):
    return [x for layer in given for x in layer]


@pytest.mark.parametrize("gains", GAINS, ids=str)
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("needs_grad", [False, True])
def test_outputs_states_and_gradients_are_those_of_pid_step(
    gains, kv_heads, lean, needs_grad, monkeypatch
):
    given = leaves(kv_heads=kv_heads, needs_grad=needs_grad)
    kept = copy.deepcopy(given)
    outs, state = chain(given, gains, lean=lean)
    with monkeypatch.context() as patch:
        expected, expected_state = chain(kept, gains, patch, lean=lean)
    assert type(state) is type(expected_state)
    for one, two in zip([*outs, *state], [*expected, *expected_state], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-13)
    found = []
    for inputs, made in ((given, [*outs, *state]), (kept, [*expected, *expected_state])):
        for x, y in zip(flat(given), flat(kept), strict=True):
            assert torch.equal(x, y)  # what was given is not written to
        if needs_grad:  # weights that differ, and the state is part of the loss
            loss = sum((n + 1) * x.square().sum() for n, x in enumerate(made) if x.requires_grad)
            found.append(torch.autograd.grad(loss, flat(inputs)))
    for one, two in zip(*found, strict=True) if found else ():
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-11)


def test_with_a_gain_of_zero_what_it_would_read_is_not_read():
    given = leaves(needs_grad=False)
    with torch.no_grad():
        given[0][2].fill_(torch.inf)  # v_0, which only the error reads
        for needs_grad in (False, True):
            given[1][0].requires_grad_(needs_grad)
            with torch.set_grad_enabled(needs_grad):
                outs, _ = chain(given, PIDGains())
            assert all(bool(out.isfinite().all()) for out in outs[1:])


@pytest.mark.parametrize("part", range(12))
def test_any_one_input_may_ask_for_its_gradient(part, monkeypatch):
    found = []
    for is_patched in (False, True):
        given = leaves(needs_grad=False)
        leaf = flat(given)[part].requires_grad_()
        with monkeypatch.context() as patch:
            outs, _ = chain(given, GAINS[0], patch if is_patched else None)
        (gradient,) = torch.autograd.grad(sum(out.square().sum() for out in outs), leaf)
        found.append(gradient)
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("gains", GAINS[:3], ids=str)
def test_second_derivatives_are_those_of_pid_step(gains, monkeypatch):
    found = []
    for is_patched in (False, True):
        given = leaves()
        with (
            monkeypatch.context() as patch,
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            outs, _ = chain(given, gains, patch if is_patched else None)
            inputs = flat(given)
            loss = sum(out.pow(3).sum() for out in outs)
            first = torch.autograd.grad(loss, inputs, create_graph=True)
            found.append(torch.autograd.grad(sum(x.square().sum() for x in first), inputs))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_gradients_in_a_batch_are_those_one_by_one():
    given = leaves()
    outs, _ = chain(given, GAINS[0])
    inputs, loss = flat(given), torch.stack([out.square().sum() for out in outs])
    batched = torch.autograd.grad(
        loss,
        inputs,
        torch.eye(len(loss), dtype=loss.dtype),
        is_grads_batched=True,
        retain_graph=True,
    )
    for place, one in enumerate(loss):
        alone = torch.autograd.grad(one, inputs, retain_graph=True, allow_unused=True)
        for whole, single in zip(batched, alone, strict=True):
            expected = torch.zeros_like(whole[place]) if single is None else single
            torch.testing.assert_close(whole[place], expected, rtol=1e-11, atol=1e-12)


def test_without_gradients_attention_and_control_share_their_memory(monkeypatch):
    places = []
    real = plain.control_forward

    def noted(out, *rest, **options):
        u, total = real(out, *rest, **options)
        places.append((out.data_ptr(), u.data_ptr()))
        return u, total

    monkeypatch.setattr(plain, "control_forward", noted)
    chain(leaves(needs_grad=False), GAINS[0])
    assert len(places) == 3 and all(one == two for one, two in places)
    chain(leaves(), GAINS[0])
    assert len(places) == 6 and all(one != two for one, two in places[3:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_numbers_are_left_to_pid_step(dtype):
    (q, k, v), (_, _, other) = layers(2, dtype=dtype)
    out, state = pid_attention(q, k, v, None, GAINS[0])
    assert not plain.takes(out, other, state, GAINS[0])
    assert plain.takes(
        *(x.float() for x in (out, other)), type(state)(*(x.float() for x in state)), GAINS[0]
    )


def test_a_trace_is_of_operations_that_any_runtime_knows():
    qkvs = layers(2, dtype=torch.float32)

    def run(q, k, v):
        _, state = attention.pid_attention(*qkvs[0], None, GAINS[0])
        return attention.pid_attention(q, k, v, state, GAINS[0])[0]

    traced = torch.jit.trace(run, qkvs[1], check_trace=False)
    assert "PythonOp" not in str(traced.graph)
    torch.testing.assert_close(traced(*qkvs[1]), run(*qkvs[1]), rtol=1e-5, atol=1e-6)
