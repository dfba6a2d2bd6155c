"""States that the Triton kernels read: of other shapes and types, and made by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

from pidformer import PIDState, pid_attention
from pidformer.control.pid import pid_step
from pidformer.errors import InputError
from pidformer.ops import epilogue, kernels, short
from pidformer.ops.attention import add_control
from tests.ops.chains import DEVICE, GAINS, LIMIT, needs_kernels, ours, placed, relative
from tests.ops.test_attention import layers

pytestmark = needs_kernels


@pytest.mark.parametrize("keys", [5, 9])
def test_a_state_of_another_shape_is_never_read_as_if_it_fitted(keys):
    """Not by a kernel, which would read beyond it; also while decoding, with more keys."""
    q, k, v = (torch.randn(2, 2, n, 16, device=DEVICE) for n in (5, keys, keys))
    other = torch.randn(1, 2, 5, 16, device=DEVICE)
    with kernels("triton"), pytest.raises(InputError, match=r"\(1, 2, 5, 16\).*\(2, 2, 5, 16\)"):
        pid_attention(q, k, v, PIDState(other, other, other), GAINS)
    broadcast = PIDState(torch.randn_like(q), other, other)
    found = []
    for name in ("torch", "triton"):
        with kernels(name):
            found.append(pid_attention(q, k, v, broadcast, GAINS)[0])
    assert torch.equal(*found)


def test_a_narrow_integral_is_kept_narrow():
    (_, _, v), second = placed(layers(2, heads=2, dim=16), torch.float16)
    state = PIDState(v, torch.randn_like(v), v)
    with kernels("triton"):
        _, after = pid_attention(*second, state, GAINS)
    assert after.integral.dtype == torch.float16
    expected = state.integral.double() + GAINS.beta * v.double() - second[2].double()
    assert relative(after.integral, expected) < 1e-3


def one_number(v):
    return torch.tensor(0.7, device=v.device).expand(v.shape)


MADE = {
    "one number": lambda v, first: PIDState(v, one_number(v), v.flip(-1)),
    "one number for v_0 twice": lambda v, first: PIDState(v, one_number(v), v),
    "one number, put into a first state": lambda v, first: first._replace(integral=one_number(v)),
    "put together again": lambda v, first: PIDState(*first),
    "mapped": lambda v, first: tree_map(lambda x: x + 0.3, first),
    "one number a head": lambda v, first: PIDState(v, v[:, :, :1, :1].expand(v.shape), v),
}


@pytest.mark.parametrize("way", ["short", "epilogue"])
@pytest.mark.parametrize("made", MADE)
def test_a_state_made_by_hand_is_read_as_it_is(made, way):
    """An integral that is one number everywhere takes no memory, as the zeros of a first layer."""
    dtype = torch.float16 if DEVICE == "cuda" else torch.float32
    (q, k, v), second = placed(layers(2, heads=2, dim=16, tokens=5), dtype)
    state = MADE[made](v, pid_attention(q, k, v, None, GAINS)[1])
    with ours(way):
        out, after = pid_attention(*second, state, GAINS)
    control, then = pid_step(second[2], PIDState(*state), GAINS)  # both ways read states alike
    expected = add_control(F.scaled_dot_product_attention(*second), control)
    assert relative(out, expected) < LIMIT[dtype]
    assert relative(after.integral, then.integral) < LIMIT[dtype]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["short", "epilogue"])
@pytest.mark.parametrize("cut", [False, True])
def test_the_zeros_of_a_first_layer_are_not_read(cut, way, monkeypatch):
    (q, k, v), second = placed(layers(2, heads=2, dim=16, tokens=5), torch.float16)
    module, name = (short, "short_forward") if way == "short" else (epilogue, "control_forward")
    real, given = getattr(module, name), []

    def watched(*arguments):
        given.append(arguments[5 if way == "short" else 4])
        return real(*arguments)

    monkeypatch.setattr(module, name, watched)
    with ours(way):
        _, state = pid_attention(q, k, v, None, GAINS)
        if cut:
            state, second = tree_map(lambda x: x[..., 2:, :], (state, second))
        _, state = pid_attention(*second, state, GAINS)
        pid_attention(*second, state, GAINS)
    assert [x is None for x in given[-2:]] == [True, False]
