"""Every relative of PID control against the few lines of its paper, in float64."""

import pytest
import torch

from pidformer import pid_attention
from pidformer.control import Feedback, as_feedback
from pidformer.control.feedback import acting_law
from pidformer.errors import InputError
from pidformer.ops.attention import mixed_values
from tests.ops.relatives import DEFINITIONS, by_definition
from tests.ops.test_attention import layers, run

names = pytest.mark.parametrize("name", DEFINITIONS, ids=str)


@names
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_a_method_by_its_name_is_its_paper(name, is_causal, kv_heads):
    qkvs = layers(4, heads=4, kv_heads=kv_heads)
    for ours, theirs in zip(
        run(qkvs, name, is_causal=is_causal), by_definition(name, qkvs, is_causal), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@names
def test_gradients_are_those_of_the_definition(name):
    qkvs = layers(3, heads=4, kv_heads=2)
    leaves = [x.requires_grad_() for layer in qkvs for x in layer]
    ours = torch.autograd.grad(sum(x.square().sum() for x in run(qkvs, name)), leaves)
    theirs = torch.autograd.grad(sum(x.square().sum() for x in by_definition(name, qkvs)), leaves)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-11)


@names
def test_behind_a_cache_the_last_token_is_the_same(name):
    """One token against all keys: what the cache keeps are the values that attention saw."""
    qkvs = layers(3, heads=4, kv_heads=2)
    whole, state = run(qkvs, name, is_causal=True), None
    for (q, k, v), expected in zip(qkvs, whole, strict=True):
        law = acting_law(as_feedback(name))
        seen = v if not isinstance(law, Feedback) else law.first * qkvs[0][2] + law.own * v
        out, state = pid_attention(
            q[..., -1:, :], k, seen, state, name, is_causal=True, value=v[..., -1:, :]
        )
        torch.testing.assert_close(out, expected[..., -1:, :], rtol=1e-12, atol=1e-12)


def test_values_that_are_mixed_by_nobody_are_refused():
    (q, k, v), *_ = layers(1)
    with pytest.raises(InputError, match="mixed_values"):
        pid_attention(q[..., -1:, :], k, v, None, "resformer")
    assert mixed_values(v, None, None) is v


@names
def test_half_precision_rounds_once(name):
    qkvs = layers(3, heads=4, kv_heads=2, dtype=torch.bfloat16)
    wide = [[x.float() for x in layer] for layer in qkvs]
    for ours, exact in zip(run(qkvs, name), run(wide, name), strict=True):
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours.float(), exact, rtol=0.03, atol=0.03)


def test_a_value_of_zeros_excludes_nothing():
    (q, k, v), *_ = layers(1)
    v = torch.zeros_like(v)
    out, _ = pid_attention(q, k, v, None, "xsa")
    assert torch.equal(out, torch.zeros_like(out))


def test_neutral_coefficients_are_attention():
    qkvs = layers(3)
    for ours, plain in zip(run(qkvs, Feedback()), run(qkvs, None), strict=True):
        assert torch.equal(ours, plain)
