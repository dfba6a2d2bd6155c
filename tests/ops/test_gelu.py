"""GELU with its bias in one pass, against PyTorch's in float64."""

import pytest
import torch
import torch.nn.functional as F

from pidformer.nn import PIDBlock
from pidformer.ops import gelu, kernels
from tests.ops.chains import DEVICE, LIMIT, needs_kernels, relative

pytestmark = needs_kernels


def exact(x, bias, grad):
    """Output and gradients of F.gelu(x + bias), in float64."""
    x, bias = (t.detach().double().requires_grad_() for t in (x, bias))
    out = F.gelu(x + bias)
    out.backward(grad.double())
    return out, x.grad, bias.grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 65, 24), (1, 1, 300), (130, 256)])
def test_output_and_gradients_match_float64(shape, dtype):
    torch.manual_seed(0)
    x, grad = (torch.randn(shape, device=DEVICE, dtype=dtype) for _ in range(2))
    bias = torch.randn(shape[-1], device=DEVICE)
    x, bias = (2 * x).requires_grad_(), bias.requires_grad_()
    with kernels("triton"):
        out = gelu.bias_gelu(x, bias)
    assert "_BiasGelu" in type(out.grad_fn).__name__
    out.backward(grad)
    assert out.dtype == x.grad.dtype == dtype and bias.grad.dtype == torch.float32
    for found, expected in zip((out, x.grad, bias.grad), exact(x, bias, grad), strict=True):
        assert relative(found, expected) < LIMIT[dtype]
    assert relative(bias.grad, exact(x, bias, grad)[2]) < 1e-5  # sums are float32, not rounded


def test_far_from_zero_it_is_as_exact_as_float32():
    x = torch.linspace(-12, 12, 4096, device=DEVICE).to(torch.float16)
    zero = torch.zeros(1, device=DEVICE)
    out, _, _ = exact(x[:, None], zero, x[:, None])
    found = gelu.gelu_forward(x[:, None], zero)
    assert (found.double() - out).abs().max() < 2**-11 * 12
    near = (x < 0)[:, None]
    assert (found.double() - out)[near].abs().max() < 2**-11 * 0.17 + 5e-7


def test_strides_do_not_matter():
    torch.manual_seed(0)
    x = torch.randn(6, 5, device=DEVICE, dtype=torch.float16)
    bias = torch.randn(6, device=DEVICE)
    assert torch.equal(gelu.gelu_forward(x.t(), bias), gelu.gelu_forward(x.t().contiguous(), bias))


@pytest.mark.parametrize(("name", "dtype"), [("auto", torch.float16), ("triton", torch.float32)])
def test_else_it_is_that_of_pytorch(name, dtype):
    x, bias = torch.randn(3, 8, device=DEVICE, dtype=dtype), torch.randn(8, device=DEVICE)
    with kernels(name):
        assert torch.equal(gelu.bias_gelu(x, bias), F.gelu(x + bias).to(dtype))


def test_torch_fx_records_it_as_one_step():
    block = PIDBlock(16, 1).to(DEVICE)
    x = torch.randn(1, 4, 16, device=DEVICE)
    with kernels("triton"):
        traced = torch.fx.symbolic_trace(block)
        assert "bias_gelu" in traced.code
        torch.testing.assert_close(traced(x), block(x))


def halves(name, block, x):
    """Output and gradients of a block, its products in float16 (the interpreter's attention)."""
    x = x.clone().requires_grad_()
    with kernels(name), torch.autocast(DEVICE, torch.float16):
        out = block(x)
    block.zero_grad()
    out.float().square().sum().backward()
    return [out, x.grad, *(p.grad.clone() for p in block.mlp.parameters())]


def test_a_block_gives_the_same_on_both():
    torch.manual_seed(0)
    block = PIDBlock(32, 2).to(DEVICE)
    torch.nn.init.normal_(block.mlp.fc1.bias)
    x = torch.randn(2, 9, 32, device=DEVICE)
    for ours, theirs in zip(halves("triton", block, x), halves("torch", block, x), strict=True):
        assert relative(ours, theirs) < LIMIT[torch.float16]


@pytest.mark.parametrize("name", ["torch", "auto", "triton"])
def test_it_is_taken_where_asked_for_and_never_past_a_hook(name, monkeypatch):
    calls, seen = [], []
    monkeypatch.setattr("pidformer.nn.block.bias_gelu", lambda x, b: calls.append(x) or x + b)
    block = PIDBlock(16, 1).to(DEVICE)
    x = torch.randn(1, 4, 16, device=DEVICE)
    with kernels(name), torch.autocast(DEVICE, torch.bfloat16):
        block(x)
        assert len(calls) == (name == "triton")
        block.mlp.act.register_forward_hook(lambda *_: seen.append(1))
        block(x)
    assert len(calls) == (name == "triton") and seen == [1]


def test_it_compiles_without_graph_breaks():
    torch.manual_seed(0)
    block = PIDBlock(16, 1).to(DEVICE)
    x = torch.randn(1, 4, 16, device=DEVICE)
    with kernels("triton"), torch.autocast(DEVICE, torch.bfloat16):
        expected = block(x)
        found = torch.compile(block, backend="aot_eager", fullgraph=True)(x)
        found.float().sum().backward()
    assert relative(found, expected) < LIMIT[torch.bfloat16]
    assert block.mlp.fc1.bias.grad is not None


@pytest.mark.slow
def test_operators_pass_opcheck():
    x, grad = (torch.randn(3, 5, 24, device=DEVICE, dtype=torch.float16) for _ in range(2))
    bias = torch.randn(24, device=DEVICE)
    torch.library.opcheck(gelu.gelu_forward.op, (x, bias))
    torch.library.opcheck(gelu.gelu_backward.op, (grad, x, bias))
