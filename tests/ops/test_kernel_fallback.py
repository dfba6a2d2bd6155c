"""What the Triton kernels cannot take, PyTorch's compute, with a word or silently."""

import warnings

import pytest
import torch
from torch.overrides import TorchFunctionMode

from pidformer import pid_attention
from pidformer.control import Feedback
from pidformer.ops import dispatch, epilogue_kernels, kernels
from tests.ops.chains import GAINS, LIMIT, needs_kernels, placed, relative
from tests.ops.test_attention import layers

pytestmark = needs_kernels


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x.double(), "float64"),
        (lambda x: x[..., :8], "head dims"),
        (lambda x: x[0], "batch, heads"),
    ],
)
def test_what_the_kernels_cannot_take_is_said_once_and_computed(change, words, monkeypatch):
    monkeypatch.setattr(dispatch, "_warned", set())
    qkvs = [
        [change(x) for x in layer] for layer in placed(layers(2, heads=2, dim=16), torch.float32)
    ]
    with kernels("triton"), pytest.warns(UserWarning, match=words):
        _, state = pid_attention(*qkvs[0], None, GAINS)
    with kernels("triton"), warnings.catch_warnings():
        warnings.simplefilter("error")
        out, _ = pid_attention(*qkvs[1], state, GAINS)
    with kernels("torch"):
        _, state = pid_attention(*qkvs[0], None, GAINS)
        expected, _ = pid_attention(*qkvs[1], state, GAINS)
    assert torch.equal(out, expected)


def test_a_broken_triton_warns_and_gives_the_same_numbers(monkeypatch):
    class Broken:
        def __getitem__(self, grid):
            raise OSError("no compiler")

    monkeypatch.setattr(dispatch, "_warned", set())
    monkeypatch.setattr(dispatch, "_checked", {})
    monkeypatch.setattr(epilogue_kernels, "control_forward", Broken())
    q, k, v = placed(layers(1, heads=2, dim=16), torch.float32)[0]
    with kernels("triton"), pytest.warns(UserWarning, match="no compiler"):
        out, _ = pid_attention(q, k, v, None, GAINS)
    with kernels("torch"):
        assert torch.equal(out, pid_attention(q, k, v, None, GAINS)[0])


def test_transforms_and_watchers_see_pytorch():

    class Watch(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Watch.seen += func is torch.nn.functional.scaled_dot_product_attention
            return func(*args, **(kwargs or {}))

    q, k, v = placed(layers(1, heads=2, dim=16), torch.float32)[0]
    with kernels("triton"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Watch():
            pid_attention(q, k, v, None, GAINS)
        torch.func.grad(lambda v: pid_attention(q, k, v, None, GAINS)[0].sum())(v)
    assert Watch.seen == 1


@pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning"
)
def test_a_trace_is_of_pytorchs_operations(monkeypatch):
    """Traced sizes are tensors, which no plan of ours can be made of."""
    monkeypatch.setattr(dispatch, "_warned", set())
    first, one, other = placed(layers(3, heads=2, dim=16), torch.float32)

    def run(q, k, v):
        _, state = pid_attention(*first, None, GAINS)
        return pid_attention(q, k, v, state, GAINS)[0]

    with kernels("triton"), pytest.warns(UserWarning, match=r"torch\.jit"):
        traced = torch.jit.trace(run, one, check_trace=False)
    with kernels("torch"):
        torch.testing.assert_close(traced(*other), run(*other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("queries", "change", "options"),
    [
        (20, None, {"scale": 0.0}),
        (20, None, {"scale": -0.5}),
        (3, None, {}),  # a cache: more keys than queries
        (20, lambda x: x.mT.contiguous().mT, {}),
    ],
    ids=["scale 0", "negative scale", "cache", "strides"],
)
def test_what_is_left_to_sdpa_or_copied_has_its_numbers(queries, change, options):
    (given,) = placed(layers(1, heads=2, tokens=20, dim=16), torch.float16)
    q, k, v = given if change is None else map(change, given)
    q = q[..., -queries:, :]
    with kernels("triton"):
        out, _ = pid_attention(q, k, v, None, Feedback(scale=2.0), **options)
    wide = (x.double() for x in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(*wide, **options)
    assert relative(out, 2 * expected) < LIMIT[torch.float16]
