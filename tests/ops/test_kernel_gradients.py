"""Gradients through the Triton kernels: of gains, networks, states; twice, in batches, again."""

from typing import ClassVar

import pytest
import torch

from pidformer import LearnedGains, PIDGains, PIDState, pid_attention, scan_blocks
from pidformer.control.gains import GainTensors
from pidformer.ops import attention, dispatch, kernels
from tests.ops.chains import DEVICE, GAINS, LIMIT, needs_kernels, network, ours, placed, relative
from tests.ops.test_attention import layers, run

pytestmark = needs_kernels


@pytest.mark.slow
@pytest.mark.parametrize("way", ["short", "epilogue"])
@pytest.mark.parametrize("kv_heads", [2, 1])
def test_learned_gains_and_their_gradients(way, kv_heads):
    dtype = torch.float16 if DEVICE == "cuda" else torch.float32
    qkvs = layers(3, heads=2, kv_heads=kv_heads, dim=16, dtype=torch.float64)
    exact = [[x.to(dtype).double() for x in layer] for layer in qkvs]

    def run(inputs, wide, through):
        torch.manual_seed(0)
        device = inputs[0][0].device
        raw = [(torch.rand(3, kv_heads, 1, 1).to(device, wide) / 2).requires_grad_() for _ in "ab"]
        gains = [GainTensors(*raw[0], 0.3), GainTensors(*raw[1], 0.3)]
        loss = 0
        state = None
        for inputs_of, own in zip(inputs, (gains[0], *gains), strict=True):
            out, state = through(*inputs_of, state, own)
            loss = loss + out.double().square().sum()
        loss = loss + state.integral.double().sum()
        return torch.autograd.grad(loss, [*raw, *[x for layer in inputs for x in layer]])

    def fused(*arguments):
        with ours(way):
            return pid_attention(*arguments)

    for layer in exact:
        for x in layer:
            x.requires_grad_()
    found = run(placed(qkvs, dtype, True), torch.float32, fused)
    wanted = run(exact, torch.float64, pid_attention)
    for a, b in zip(found, wanted, strict=True):
        assert relative(a, b) < 4 * LIMIT[dtype]


@pytest.mark.slow
@pytest.mark.parametrize("learned", [False, True])
def test_a_network_has_the_same_gradients_on_both_kernels(learned):
    """The packed projection, three layers deep, with everything that the state carries."""
    blocks = network()
    if learned:
        for block in blocks:
            block.attn.gains = LearnedGains(PIDGains(p=0.4, i=0.1, d=0.05), 2).to(DEVICE)
    x = torch.randn(2, 9, 32, device=DEVICE)
    found = {}
    for name in ("torch", "triton"):
        with kernels(name), torch.autocast(DEVICE, torch.float16, enabled=DEVICE == "cuda"):
            out, _ = scan_blocks(blocks, x)
            blocks.zero_grad()
            out.float().square().sum().backward()
        found[name] = [p.grad.clone() for p in blocks.parameters() if p.grad is not None]
    limit = 1e-2 if DEVICE == "cuda" else 1e-5
    assert len(found["torch"]) == len(found["triton"]) > 20
    for a, b in zip(found["triton"], found["torch"], strict=True):
        assert relative(a, b) < limit


def test_the_state_alone_has_gradients():
    qkvs = layers(2, heads=2, dim=16, dtype=torch.float32)
    grads = {}
    for name in ("torch", "triton"):
        inputs = placed(qkvs, torch.float32, True)
        with kernels(name):
            _, state = pid_attention(*inputs[0], None, GAINS)
            _, state = pid_attention(*inputs[1], state, GAINS)
            loss = state.integral.square().sum() + (state.previous * state.initial).sum()
            grads[name] = torch.autograd.grad(loss, [inputs[0][2], inputs[1][2]])
    for a, b in zip(grads["triton"], grads["torch"], strict=True):
        assert relative(a, b) < 1e-6


@pytest.mark.parametrize("masked", [False, True])
def test_a_layer_that_nothing_used_has_no_gradient(masked):
    """A sum that is carried on and not read leaves the layer below without any."""
    qkvs = placed(layers(3, heads=2, dim=16, tokens=5), torch.float32, True)
    mask = torch.ones(5, 5, dtype=torch.bool, device=DEVICE) if masked else None
    state, gains = None, PIDGains(p=0.5)
    with kernels("triton"):
        for q, k, v in qkvs:
            if state is not None:
                state = PIDState(state.initial.detach(), state.integral, state.previous.detach())
            out, state = pid_attention(q, k, v, state, gains, attn_mask=mask)
    found = torch.autograd.grad(out.sum(), [x for y in qkvs for x in y], allow_unused=True)
    assert all(x is None for x in found[:6]) and all(x is not None for x in found[6:])


@pytest.mark.parametrize("masked", [False, True])
def test_second_derivatives_are_refused_not_made_up(masked):
    (q, k, v), second = placed(layers(2, heads=2, dim=16, tokens=5), torch.float16)
    mask = torch.ones(5, 5, dtype=torch.bool, device=DEVICE) if masked else None
    q2, k2, v2 = (x.requires_grad_() for x in second)
    with kernels("triton"):
        _, state = pid_attention(q, k, v.requires_grad_(), None, GAINS)
        out, _ = pid_attention(q2, k2, v2, state, GAINS, attn_mask=mask)
        (first,) = torch.autograd.grad(out.float().square().sum(), v2, create_graph=True)
        with pytest.raises(RuntimeError, match=r"no autograd formula|not implemented"):
            torch.autograd.grad(first.float().square().sum(), v2)


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_may_be_asked_for_in_a_batch(masked):
    (q, k, v), second = placed(layers(2, heads=2, dim=16, tokens=5), torch.float32, True)
    mask = torch.ones(5, 5, dtype=torch.bool, device=DEVICE) if masked else None
    with kernels("triton"):
        _, state = pid_attention(q, k, v, None, GAINS, attn_mask=mask)
        out, _ = pid_attention(*second, state, GAINS, attn_mask=mask)
    pulls = torch.randn(3, *out.shape, device=DEVICE)

    def pulled(pull, **options):
        return torch.autograd.grad(out, (v, *second), pull, retain_graph=True, **options)

    wanted = [torch.stack(each) for each in zip(*map(pulled, pulls), strict=True)]
    for found in (pulled(pulls, is_grads_batched=True), torch.vmap(pulled)(pulls)):
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("around", ["torch", "triton"])
def test_a_checkpointed_block_is_recomputed_on_its_kernels(around):
    """The backward may run outside the block of code that chose them."""
    blocks, x = network(), torch.randn(2, 9, 32, device=DEVICE, requires_grad=True)
    found = []
    for checkpointing in (False, True):
        with kernels(around), torch.autocast(DEVICE, torch.float16, enabled=DEVICE == "cuda"):
            out, _ = scan_blocks(blocks, x, checkpointing=checkpointing)
        with kernels("triton" if around == "torch" else "torch"):
            found.append(torch.autograd.grad(out.float().square().sum(), x)[0])
    assert torch.equal(*found)


class Watched(torch.autograd.Function):
    """Attention whose backward notes how its gradient lies in memory."""

    steps: ClassVar[list[tuple[int, ...]]] = []

    @staticmethod
    def forward(ctx, out):
        return out.view_as(out)

    @staticmethod
    def backward(ctx, grad):
        Watched.steps.append(grad.stride())
        return grad


@pytest.mark.parametrize("name", ["triton", "torch"])
@pytest.mark.parametrize("kind", ["whole", "causal", "masked", "grouped"])
@pytest.mark.parametrize("law", [None, GAINS, "xsa", "resformer"])
def test_attention_gets_its_gradient_in_one_layout_whatever_came_back(law, kind, name, monkeypatch):
    """That of merged heads, (B, N, H, D) in memory: of every layer, also where none is added to."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(Watched, "steps", [])
    monkeypatch.setattr(attention, "_is_cudnns", lambda out: True)
    monkeypatch.setattr(
        attention.F,
        "scaled_dot_product_attention",
        lambda *given, **options: Watched.apply(sdpa(*given, **options)),
    )
    monkeypatch.setattr(dispatch, "LONGEST", 0)
    options = {"is_causal": kind == "causal"}
    if kind == "masked":
        options["attn_mask"] = torch.ones(5, 5, dtype=torch.bool, device=DEVICE).tril()
    kv_heads = 1 if kind == "grouped" else 2
    qkvs = placed(layers(3, heads=2, kv_heads=kv_heads, dim=16, tokens=5), torch.float32, True)
    merged = torch.randn(2, 5, 2, 16, device=DEVICE).transpose(1, 2)
    found = []
    for pull in (merged, merged.contiguous(), merged[..., :1].expand_as(merged)):
        state, outs = None, []
        with kernels(name):
            for q, k, v in qkvs:
                out, state = pid_attention(q, k, v, state, law, **options)
                outs.append(out)
        leaves = [x for layer in qkvs for x in layer]
        found.append(torch.autograd.grad(outs, leaves, [pull] * len(outs)))
    assert len(Watched.steps) == 3 * len(qkvs) and set(Watched.steps) == {merged.stride()}
    for a, b in zip(*found[:2], strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["triton", "torch"])
def test_gradients_are_right_in_either_layout_of_what_comes_back(name):
    """cuDNN's attention, which torch 2.11 takes here, keeps the layout of the first call."""
    drawn = layers(2, heads=3, kv_heads=1, tokens=600, dim=64)
    qkvs = [[x.cuda().bfloat16() for x in layer] for layer in drawn]
    pull = torch.randn(2, 600, 3, 64, device=DEVICE).transpose(1, 2)

    def gradients(grad, dtype, name):
        leaves = [[x.to(dtype).requires_grad_() for x in layer] for layer in qkvs]
        with kernels(name):  # the first layer is attention alone
            outs = run(leaves, PIDGains(p=0.4, i=0.1, d=0.05), is_causal=True)
        return torch.autograd.grad(
            outs, [x for layer in leaves for x in layer], [grad.to(dtype)] * 2
        )

    expected = gradients(pull, torch.float64, "torch")
    for grad in (pull, pull.contiguous()):
        for a, b in zip(gradients(grad, torch.bfloat16, name), expected, strict=True):
            assert relative(a, b) < 4 * LIMIT[torch.bfloat16]
