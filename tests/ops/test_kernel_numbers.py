"""The Triton kernels compute what the definition says, in float64."""

import pytest
import torch

from pidformer import LearnedGains, PIDGains, PIDState, pid_attention
from pidformer.ops import epilogue, kernels
from pidformer.ops.exclude import exclude
from tests.ops.chains import DEVICE, GAINS, LIMIT, chain, needs_kernels, ours, placed, relative
from tests.ops.test_attention import direct, layers

pytestmark = needs_kernels

CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "grouped": {"kv_heads": 1},
    "grouped causal": {"kv_heads": 2, "is_causal": True},
    "one token": {"tokens": 1},
    "odd": {"tokens": 37},
    "dim 80": {"dim": 80},
    "tail": {"tokens": 65, "dim": 64, "heads": 1},
    "grouped causal tail": {"tokens": 81, "dim": 40, "kv_heads": 1, "is_causal": True},
    "dim 16": {"dim": 16, "tokens": 16},
    "controlled first": {"first_layer": "controlled"},
    # The interpreter multiplies bfloat16 matrices as if they were integers.
    "half": {"dtype": torch.bfloat16 if DEVICE == "cuda" else torch.float16, "tokens": 20},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["short", "epilogue"])
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_match_definition_1(way, case):
    options = dict(CASES[case])
    dtype = options.pop("dtype", torch.float32)
    if way == "short" and DEVICE == "cuda" and dtype == torch.float32:
        dtype = torch.float16  # float32 is left to SDPA
    sizes = {"heads": 2, "tokens": 7, "dim": 16, "batch": 1}
    sizes |= {name: options.pop(name) for name in list(options) if name in (*sizes, "kv_heads")}
    qkvs = [[x.to(dtype).double() for x in layer] for layer in layers(3, **sizes)]
    given = placed(qkvs, dtype, needs_grad=True)
    outs, state = chain(given, GAINS, way, **options)
    exact = [[x.requires_grad_() for x in layer] for layer in qkvs]
    expected = direct(exact, GAINS, **options)
    is_wide = options.get("first_layer") == "controlled"  # the sum then starts in `pid_step`
    assert state.integral.dtype == (torch.float32 if is_wide else dtype)
    for out, wanted in zip(outs, expected, strict=True):
        assert out.dtype == dtype and out.shape == wanted.shape
        assert relative(out, wanted) < LIMIT[dtype]
    pull = [torch.randn_like(out) for out in expected]
    found = torch.autograd.grad(
        sum((out.double() * g.to(out.device)).sum() for out, g in zip(outs, pull, strict=True)),
        [x for layer in given for x in layer],
    )
    wanted = torch.autograd.grad(
        sum((out * g).sum() for out, g in zip(expected, pull, strict=True)),
        [x for layer in exact for x in layer],
    )
    for a, b in zip(found, wanted, strict=True):
        if b.norm() > 1e-6:  # with one token, scores do not matter
            assert relative(a, b) < 2 * LIMIT[dtype]
        else:
            assert a.norm() < 1e-2


ZEROS = {
    "p": ["0.6,0,0,1"],
    "pd": ["0.6,0,0.2,0.5"],
    "pi": ["0.4,0.3,0,0.5"],
    "i, then p": ["0,0.3,0,1", "0.6,0,0,1"],
    "p, then pid": ["0.6,0,0,1", "0.6,0,0,1", "0.4,0.3,0.2,0.5"],
    "d, then p": ["0,0,0.2,1", "0.6,0,0,1"],
}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["short", "epilogue"])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("case", ZEROS)
def test_what_a_gain_of_zero_leaves_out_changes_nothing(way, with_state, case):
    """Neither what is read less, nor what later layers and a loss on the state still need."""
    gains = [PIDGains.parse(text) for text in ZEROS[case]]
    dtype = torch.float16 if DEVICE == "cuda" else torch.float32
    qkvs = [[x.to(dtype).double() for x in layer] for layer in layers(4, heads=2, dim=16, tokens=7)]
    given, exact = placed(qkvs, dtype, True), [[x.requires_grad_() for x in y] for y in qkvs]

    def run(inputs):
        state, loss = None, 0
        for layer, (q, k, v) in enumerate(inputs):
            out, state = pid_attention(q, k, v, state, gains[min(layer, len(gains) - 1)])
            loss = loss + (out.double() * weights[layer].to(out.device)).sum()
        if with_state:
            loss = loss + (state.integral.double() * weights[-1].to(out.device)).square().sum()
            loss = loss + state.previous.double().square().sum()
        return torch.autograd.grad(loss, [x for layer in inputs for x in layer])

    torch.manual_seed(0)
    weights = [torch.randn(qkvs[0][0].shape, dtype=torch.float64) for _ in range(5)]
    with ours(way):
        found = run(given)
    with kernels("torch"):
        wanted = run(exact)
    for a, b in zip(found, wanted, strict=True):
        assert relative(a, b) < 2 * LIMIT[dtype]


@pytest.mark.slow
def test_zero_gains_equal_softmax_attention():
    qkvs = placed(layers(3, heads=2, dim=16), torch.float16)
    for (q, k, v), out in zip(qkvs, chain(qkvs, PIDGains(), "short")[0], strict=True):
        plain, _ = chain([(q, k, v)], None, "short")
        assert torch.equal(out, plain[0])


def test_masks_and_dropout_take_the_epilogue():
    (q, k, v), second = placed(layers(2, heads=2, dim=16, tokens=5), torch.float32)
    keep = torch.ones(5, 5, device=DEVICE).tril().bool()
    with kernels("triton"):
        _, state = pid_attention(q, k, v, None, GAINS, attn_mask=keep)
        out, _ = pid_attention(*second, state, GAINS, attn_mask=keep)
    _, state = pid_attention(q, k, v, None, GAINS, is_causal=True)
    expected, _ = pid_attention(*second, state, GAINS, is_causal=True)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("way", ["short", "epilogue"])
def test_heads_merge_without_a_copy(way):
    qkvs = placed(layers(2, heads=2, dim=16, dtype=torch.float64), torch.float16)
    out = chain(qkvs, GAINS, way)[0][-1]
    assert out.transpose(1, 2).is_contiguous()


def test_tokens_may_lie_farther_apart_than_32_bits_count(tmp_path):
    """As the values of 175,000 tokens do in a projection of 12,288 numbers each."""
    step, shape = 2**23, (1, 1, 300, 16)
    size = shape[2] * step
    if DEVICE == "cuda":
        room = torch.empty(size, dtype=torch.float16, device=DEVICE)
    else:  # a file of holes, no more of which is in memory than is written
        file = str(tmp_path / "holes")
        room = torch.from_file(file, shared=True, size=size, dtype=torch.float16)
    far = room.as_strided(shape, (0, 0, step, 1))
    far.copy_(torch.randn(shape))
    near, out = far.contiguous(), torch.randn(shape, device=DEVICE).half()
    found = []
    for v in (far, near):
        state, v = PIDState(v + 0, out, v), v.detach().requires_grad_()
        gains = LearnedGains(PIDGains(p=0.4, i=0.1, d=0.05), 1).to(DEVICE)
        u, _ = epilogue.control(out, v, state, gains())
        u = exclude(u, v, 0.5)
        found.append([u, *torch.autograd.grad(u.sum(), [v, *gains.parameters()])])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
