"""Tensor and context parallelism of the control: shards need nothing of each other.

Each shard runs its layers alone, with a state of its own; joined, outputs, states and gradients are
those of the whole. What attention itself needs (all keys and values, where the sequence is divided)
is given to it, as ring attention or a gather would.
"""
# L layers, B batch, H heads, N tokens, D head dim

import pytest
import torch

from pidformer.control.gains import PIDGains
from pidformer.ops.attention import pid_attention

GAINS = PIDGains(p=0.4, i=0.1, d=0.05, beta=0.9)
L, B, H, N, D = 4, 2, 6, 10, 8


@pytest.fixture
def layers():
    """q, k, v of each layer, (3, L, B, H, N, D)."""
    made = torch.randn(3, L, B, H, N, D, generator=torch.Generator().manual_seed(0))
    return made.double()


def through(q, k, v, gains=GAINS, own=None, **options):
    """Outputs of all layers, and the last state; `own` are the tokens whose outputs are wanted."""
    state, outputs = None, []
    for layer in range(len(v)):
        more = {} if own is None else {"value": v[layer][..., own, :]}
        out, state = pid_attention(q[layer], k[layer], v[layer], state, gains, **more, **options)
        outputs.append(out)
    return torch.stack(outputs), state


def joined(parts, dim):
    outputs = torch.cat([out for out, _ in parts], dim)
    states = [torch.cat(tensors, dim) for tensors in zip(*(s for _, s in parts), strict=True)]
    return outputs, states


def check(whole, parts, dim):
    outputs, states = joined(parts, dim)
    torch.testing.assert_close(outputs, whole[0], rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(states, whole[1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("ways", [2, 3])
def test_heads_are_divided(layers, ways, is_causal):
    q, k, v = layers
    shards = [part.unbind(0) for part in layers.chunk(ways, dim=3)]
    check(
        through(q, k, v, is_causal=is_causal),
        [through(*shard, is_causal=is_causal) for shard in shards],
        dim=-3,
    )


def test_dimensions_of_a_head_are_divided(layers):
    """Attention sums over them, so its weights are given; the control of each stands alone."""
    q, k, v = layers
    outputs, states = through(q, k, v)
    attended = (q @ k.mT * D**-0.5).softmax(-1) @ v
    itself = (1e3 * torch.eye(N, dtype=v.dtype)).expand(L, B, H, N, N)  # each token to itself alone
    for part in (slice(0, 3), slice(3, D)):
        own, state = through(itself, itself, v[..., part])
        control = own - v[..., part]
        torch.testing.assert_close(attended[..., part] + control, outputs[..., part])
        for ours, theirs in zip(state, states, strict=True):
            torch.testing.assert_close(ours, theirs[..., part])


@pytest.mark.parametrize("ways", [2, 3])
def test_the_sequence_is_divided(layers, ways):
    q, k, v = layers
    places = [part.tolist() for part in torch.arange(N).chunk(ways)]
    parts = [through(q[..., own, :], k, v, own=own) for own in places]
    check(through(q, k, v), parts, dim=-2)
    for (_, state), own in zip(parts, places, strict=True):
        assert {x.shape[-2] for x in state} == {len(own)}  # a shard keeps its own tokens' state


def test_gradients_of_shards_add_up(layers):
    layers.requires_grad_()
    weights = torch.randn(L, B, H, N, D, dtype=torch.float64)
    (whole,) = torch.autograd.grad((through(*layers)[0] * weights).sum(), layers)
    found = torch.zeros_like(whole)
    for own in ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9]):
        q, k, v = layers
        out, _ = through(q[..., own, :], k, v, own=own)
        found += torch.autograd.grad((out * weights[..., own, :]).sum(), layers)[0]
    torch.testing.assert_close(found, whole, rtol=1e-10, atol=1e-12)
