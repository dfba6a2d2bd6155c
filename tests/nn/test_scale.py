"""The size of the control, against the definition in float64."""

import pytest
import torch
from torch import nn

from pidformer.control import PIDGains
from pidformer.control.feedback import DiscreteGains
from pidformer.control.pid import FirstState, lean_state
from pidformer.errors import InputError
from pidformer.nn import ControlMeter, LearnedGains, PIDAttention, has_control
from pidformer.nn.variants import VariantAttention

GAINS = PIDGains(p=0.4, i=0.3, d=0.1, beta=0.7)


class Stack(nn.Module):
    def __init__(self, gains=GAINS, depth=3, attention=PIDAttention, **options):
        super().__init__()
        self.gains = gains if isinstance(gains, PIDGains) else GAINS
        torch.manual_seed(0)
        layers = [attention(24, 4, gains, **options) for _ in range(depth)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        state, terms = None, [name for name in "pid" if getattr(self.gains, name)]
        for layer in self.layers:
            x, state = layer(x, state)
            if isinstance(state, FirstState):  # as `scan_blocks` does
                state = lean_state(state, terms)
        return x


def written_out(stack, x, kv_heads, first_layer):
    """Root mean squares of A v and of the control, layer by layer, from the definition."""
    found, v_0, before, total, state = [], None, None, 0, None
    for layer in stack.layers:
        q, k, v = (
            layer.qkv(x).unflatten(-1, (-1, 6)).transpose(1, 2).split([4, kv_heads, kv_heads], 1)
        )
        q, k = layer.q_norm(q), layer.k_norm(k)
        k, v = (t.repeat_interleave(4 // kv_heads, 1).double() for t in (k, v))
        output = (q.double() @ k.mT / 6**0.5).softmax(-1) @ v
        is_first, v_0 = v_0 is None, v if v_0 is None else v_0
        control = torch.zeros_like(v)
        if not is_first or first_layer == "controlled":
            gains = stack.gains
            error = gains.beta * v_0 - v
            total = total + error
            change = 0 if is_first else before - v
            control = gains.p * error + gains.i * total + gains.d * change
        before = v
        found.append([output.square().mean().sqrt(), control.square().mean().sqrt()])
        x, state = layer(x, state)
    return torch.tensor(found).T


@torch.no_grad()
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("first_layer", ["free", "controlled"])
def test_groups_norms_and_both_first_layers_are_those_of_the_definition(
    kv_heads, norms, first_layer
):
    stack = Stack(num_kv_heads=kv_heads, qk_norm=norms, scale_norm=norms, first_layer=first_layer)
    batches = [torch.randn(2, 5, 24), torch.randn(1, 5, 24)]
    with ControlMeter(stack) as meter:
        for x in batches:
            stack(x)
    found, wanted = meter.scale(), written_out(stack, torch.cat(batches), kv_heads, first_layer)
    torch.testing.assert_close(torch.stack(found).float(), wanted.float(), rtol=1e-5, atol=1e-7)


@torch.no_grad()
@pytest.mark.parametrize("terms", [{"p": 0.6}, {"p": 0.5, "beta": 0.5}, {"p": 0.4, "d": 0.2}])
def test_networks_that_hand_on_less_are_measured_alike(terms):
    """P control hands on v_0 alone, PD control no sum; the layers' own values count."""
    stack, x = Stack(PIDGains(**terms)), torch.randn(2, 5, 24)
    plain = stack(x)
    with ControlMeter(stack) as meter:
        assert torch.equal(stack(x), plain)
    found, wanted = torch.stack(meter.scale()).float(), written_out(stack, x, 4, "free").float()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
    assert meter.scale().mean_ratio > 0.1


@torch.no_grad()
@torch.no_grad()
@pytest.mark.parametrize("step", [1.0, 0.5])
def test_control_of_an_implicit_derivative_is_what_the_layer_adds(step):
    """h / (1 + d) (p e + i h S), the part with v_0 in it of v_{l+1} (`DiscreteGains`)."""
    gains = DiscreteGains(**GAINS.to_dict(), derivative="implicit", step=step)
    stack, x = Stack(gains).double(), torch.randn(2, 5, 24, dtype=torch.float64)
    with ControlMeter(stack) as meter:
        stack(x)
    wanted, state, v_0, total = [0.0], None, None, 0
    for layer in stack.layers:
        v = layer.qkv(x).unflatten(-1, (-1, 6)).transpose(1, 2)[:, 8:]
        if v_0 is None:
            v_0 = v
        else:
            error = gains.beta * v_0 - v
            total = total + error
            added = step / (1 + gains.d) * (gains.p * error + gains.i * step * total)
            wanted.append(float(added.square().mean().sqrt()))
        x, state = layer(x, state)
    assert meter.scale().control.tolist() == pytest.approx(wanted, rel=1e-6)


def test_it_leaves_no_hook_and_changes_no_number():
    stack, x = Stack(), torch.randn(2, 5, 24)
    plain = stack(x)
    with ControlMeter(stack):
        assert torch.equal(stack(x), plain)
    with pytest.raises(RuntimeError, match="shapes"), ControlMeter(stack):
        stack(x[..., :5])
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in stack.modules())


def test_what_was_not_run_and_what_has_no_state_is_said():
    with pytest.raises(InputError, match="0 attentions were seen in a model of 3 layers"):
        ControlMeter(Stack()).scale()
    with pytest.raises(InputError, match="Linear does not hand its state"):
        ControlMeter(nn.Linear(2, 2))


def test_a_network_that_is_no_number_has_no_ratio():
    stack = Stack()
    with torch.no_grad(), ControlMeter(stack) as meter:
        stack(torch.full((1, 5, 24), torch.nan))
    assert meter.scale().mean_ratio != meter.scale().mean_ratio


def test_zero_gains_are_no_control():
    assert has_control(Stack()) and has_control(Stack(LearnedGains(GAINS, 4)))
    assert not has_control(Stack(None)) and not has_control(Stack(PIDGains(p=0, i=0, d=0)))
    mixed = Stack(None, attention=VariantAttention, value_residual=0.5)
    assert not has_control(mixed) and not has_control(nn.Linear(2, 2))
