"""Other integrals and the value residual, against sums and mixtures written out."""

import json
from pathlib import Path

import pytest
import timm
import torch

from pidformer import PIDAttention, PIDGains, scan_blocks
from pidformer.analysis import certify
from pidformer.control.pid import first_state
from pidformer.errors import InputError
from pidformer.nn.variants import VariantAttention, relaxed

GAINS = PIDGains(p=0.5, i=0.3, d=0.05, beta=0.5)
DEPTH = 4


@pytest.fixture
def x():
    return torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def layers(gains=GAINS, **options):
    torch.manual_seed(0)
    return [VariantAttention(16, 2, gains, **options).double() for _ in range(DEPTH)]


def run(attention, x):
    found, state = [], None
    for layer in attention:
        x, state = layer(x, state)
        found.append(x)
    return found


def qkv(layer, x):
    packed = layer.qkv(x).unflatten(-1, (6, 8)).transpose(1, 2)
    return packed.split(2, dim=1)


def merged(layer, heads):
    return layer.proj(heads.transpose(1, 2).flatten(2))


def written_out(attention, x, gains, integral, mix=None):
    """The definition: `integral(past errors, e, v_0)` gives the sum, `mix(v, v_0)` the values."""
    found, errors, v_0, before, total = [], [], None, None, None
    for layer in attention:
        q, k, v = qkv(layer, x)
        if v_0 is not None and mix is not None:
            v = mix(v, v_0)
        out = (q @ k.mT / 8**0.5).softmax(-1) @ v
        if v_0 is None:
            v_0, before, total = v, v, torch.zeros_like(v)
        elif gains is not None:
            error = gains.beta * v_0 - v
            errors.append(error)
            total = integral(total, error, v_0)
            out = out + gains.p * error + gains.i * total + gains.d * (before - v)
            before = v
        x = merged(layer, out)
        found.append(x)
    return found


def same(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("leak", [0.0, 0.7, 1.0])
def test_a_leaky_integral_forgets(x, leak):
    attention = layers(integral_leak=leak)
    same(run(attention, x), written_out(attention, x, GAINS, lambda s, e, v: leak * s + e))


def test_a_limited_integral_does_not_wind_up(x):
    limit = 0.4

    def integral(total, error, v_0):
        length = total.norm(dim=-1, keepdim=True)
        most = limit * v_0.norm(dim=-1, keepdim=True)
        return torch.where(length > most, total / length.clamp_min(1e-30) * most, total) + error

    attention = layers(integral_limit=limit)
    limited = run(attention, x)
    same(limited, written_out(attention, x, GAINS, integral))
    assert not torch.allclose(limited[-1], run(layers(), x)[-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_limited_sum_of_nothing_is_nothing_and_can_be_learned_through(dtype):
    """The first sum is 0, and a token of v_0 may be."""
    initial = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=dtype, requires_grad=True)
    state = first_state(initial)
    for limit in (0.4, 10.0):
        found = relaxed(state, 1.0, limit).integral
        assert torch.equal(found, torch.zeros_like(initial))
        (slope,) = torch.autograd.grad(found.sum(), initial)
        assert torch.equal(slope, torch.zeros_like(initial))


def test_an_averaged_integral_is_a_schedule_of_gains(x):
    """mean of e_1 ... e_l times i is their sum times i / l: gains by layer, nothing new."""
    attention = [
        PIDAttention(16, 2, PIDGains(p=0.5, i=0.3 / max(1, depth))).double()
        for depth in range(DEPTH)
    ]
    for own, other in zip(attention, layers(), strict=True):
        own.load_state_dict(other.state_dict())
    errors = []

    def mean(total, error, v_0):
        errors.append(error)
        return torch.stack(errors).mean(0)

    same(run(attention, x), written_out(attention, x, PIDGains(p=0.5, i=0.3), mean))


def test_zero_gains_in_a_layer_still_carry_the_sum(x):
    """Early, late, every k-th layer: the state of a layer without control is as if it had some."""
    acting = {1, 3}
    attention = [
        PIDAttention(16, 2, GAINS if depth in acting else PIDGains(beta=0.5)).double()
        for depth in range(DEPTH)
    ]
    for own, other in zip(attention, layers(), strict=True):
        own.load_state_dict(other.state_dict())
    found, y, v_0, total = [], x, None, 0
    for depth, layer in enumerate(attention):
        q, k, v = qkv(layer, y)
        out = (q @ k.mT / 8**0.5).softmax(-1) @ v
        if v_0 is None:
            v_0, before = v, v
        else:
            error = 0.5 * v_0 - v
            total = total + error
            if depth in acting:
                out = out + 0.5 * error + 0.3 * total + 0.05 * (before - v)
            before = v
        y = merged(layer, out)
        found.append(y)
    same(run(attention, x), found)


@pytest.mark.parametrize("gains", [None, GAINS])
def test_the_value_residual_mixes_before_attention(x, gains):
    attention = layers(gains, value_residual=0.5)
    wanted = written_out(
        attention, x, gains, lambda s, e, v: s + e, mix=lambda v, v_0: 0.5 * v_0 + 0.5 * v
    )
    same(run(attention, x), wanted)


def test_a_learned_value_residual_starts_at_one_half_and_learns(x):
    learned, fixed = layers(None, value_residual="learned"), layers(None, value_residual=0.5)
    for own, other in zip(learned, fixed, strict=True):
        own.load_state_dict(other.state_dict(), strict=False)
    same(run(learned, x), run(fixed, x))
    run(learned, x)[-1].square().sum().backward()
    assert all(layer.value_residual.mix.grad.abs().min() > 0 for layer in learned[1:])


def model(**options):
    torch.manual_seed(0)
    size = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "num_heads": 2}
    size |= {"depth": 3, "init_std": 0.3, "num_classes": 5}
    return timm.create_model("pid_deit_tiny_patch16_224", **size | options).eval()


def test_models_have_the_variants_and_no_idle_parameter():
    images = torch.rand(2, 1, 8, 8)
    plain = model()
    mixed = model(value_residual=0.5)
    assert plain.state_dict().keys() == mixed.state_dict().keys()
    assert not torch.allclose(plain(images), mixed(images))
    learned = model(value_residual="learned")
    learned(images).square().sum().backward()
    extra = set(learned.state_dict()) - set(plain.state_dict())
    assert extra == {f"blocks.{k}.attn.value_residual.mix" for k in (1, 2)}
    assert all(p.grad is not None for p in learned.parameters())


def test_checkpointing_keeps_gradients_of_a_mixed_model():
    images, gradients = torch.rand(2, 1, 8, 8), []
    for checkpointing in (False, True):
        own = model(gains="0.4,0.1,0.05", value_residual="learned", integral_leak=0.5)
        own.set_grad_checkpointing(checkpointing)
        own(images).square().sum().backward()
        gradients.append([p.grad for p in own.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_plain_gains_are_as_before():
    images = torch.rand(2, 1, 8, 8)
    usual = model(gains="0.4,0.1,0.05")
    said = model(gains="0.4,0.1,0.05", integral_leak=1.0, integral_limit=None)
    assert torch.equal(usual(images), said(images))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"integral_leak": 1.2}, "integral_leak must be in"),
        ({"integral_limit": 0.0}, "integral_limit must be positive"),
        ({"value_residual": True}, "value_residual must be in"),
        ({"integral_leak": "abc"}, "integral_leak must be in .*got 'abc'"),
        ({"integral_limit": "abc"}, "integral_limit must be positive, got 'abc'"),
        ({"value_residual": 2.0}, "value_residual must be in"),
        ({"value_residual": "learnt"}, "value_residual must be in"),
    ],
)
def test_bad_variants_get_one_clear_line(options, words):
    with pytest.raises(InputError, match=words):
        VariantAttention(16, 2, GAINS, **options)


EARLIER = Path(__file__).with_name("variants.json")
"""Outputs (float64) and names of parameters, written when PIDAttention itself had the switches."""
PID = "0.4,0.1,0.05,0.5"
OPTIONS = {
    "plain": {"gains": PID},
    "leaky": {"gains": PID, "integral_leak": 0.7},
    "limited": {"gains": PID, "integral_limit": 0.3},
    "both, normalised": {
        "gains": PID, "integral_leak": 0.5, "integral_limit": 0.3, "qk_norm": True
    },
    "share": {"value_residual": 0.5},
    "share with control": {"gains": PID, "value_residual": 0.25},
    "learned": {"value_residual": "learned"},
    "all, learned": {
        "gains": PID, "learn_gains": True, "value_residual": "learned", "integral_leak": 0.9
    },
}  # fmt: skip


def known(options):
    """A model whose weights and images come from a formula, not from a generator."""
    own = model(**options).double()
    for name, parameter in own.named_parameters():
        if ".gains." not in name:
            angles = torch.arange(parameter.numel(), dtype=torch.float64) + len(name)
            parameter.data = (0.5 * angles.sin()).view_as(parameter)
    images = (torch.arange(2 * 64, dtype=torch.float64).cos() / 2 + 0.5).view(2, 1, 8, 8)
    return {"output": own(images).tolist(), "names": [name for name, _ in own.named_parameters()]}


@pytest.mark.parametrize("case", OPTIONS)
def test_outputs_and_order_of_parameters_are_those_of_earlier_checkpoints(case):
    """The order too: an optimiser's state counts the parameters."""
    found, earlier = known(OPTIONS[case]), json.loads(EARLIER.read_text())[case]
    wanted = torch.tensor(earlier["output"], dtype=torch.float64)
    torch.testing.assert_close(
        torch.tensor(found["output"], dtype=torch.float64), wanted, rtol=1e-9, atol=1e-12
    )
    kept = [name for name in found["names"] if name.startswith(("blocks.0.attn", "blocks.1.attn"))]
    assert kept == earlier["names"]


def test_no_certificate_is_given_for_another_recursion():
    images = torch.rand(2, 1, 8, 8)
    with pytest.raises(InputError, match="integral_leak follows another recursion"):
        certify(model(gains="0.4,0.1,0.05", integral_leak=0.9), images)


def test_blocks_hand_the_mixed_state_on(x):
    own = model(value_residual=0.5).double()
    states = []
    scan_blocks(own.blocks, x, observe=lambda depth, tokens, state: states.append(state))
    assert all(state.initial is states[0].initial for state in states)
