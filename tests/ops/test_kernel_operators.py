"""The Triton kernels as operators: for compilers, and for those who look."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pidformer import PIDAttention, pid_attention, scan_blocks
from pidformer.ops import epilogue, kernels, short
from tests.ops.chains import DEVICE, GAINS, needs_kernels, network, placed
from tests.ops.test_attention import layers

pytestmark = needs_kernels


@pytest.mark.slow
def test_operators_pass_opcheck():
    torch.manual_seed(0)
    q, k, v, initial, previous = (
        torch.randn(2, 2, 20, 16, device=DEVICE, dtype=torch.float16) for _ in range(5)
    )
    integral = torch.randn(2, 2, 20, 16, device=DEVICE)
    state, numbers = (initial, previous, integral, None), (0.4, 0.1, 0.05, 0.5)
    check = torch.library.opcheck
    alone = (initial, None, None, None)  # v_0, and neither sum nor previous values
    for given, has_sum in ((state, True), (alone, False)):
        check(epilogue.control_forward.op, (q, v, *given, *numbers, has_sum))
        check(short.short_forward.op, (q, k, v, *given, *numbers, 0.25, False, has_sum, True))
        check(epilogue.gain_gradient.op, (q, v, initial, given[1], given[2], 0.5))
    check(epilogue.control_backward.op, (q, integral, v, k, None, False, True, 2, *numbers))
    check(epilogue.control_backward.op, (q, None, None, k, None, True, False, 2, *numbers))
    _, _, lse = short.short_forward(q, k, v, *state, *numbers, 0.25, False, True, True)
    check(short.short_backward.op, (q, k, v, lse, q, v, 0.25, False))


class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.add(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("masked", [False, True])
def test_the_registered_operators_are_for_those_who_look(masked):
    """Others get the same numbers without the dispatcher's detour."""
    (q, k, v), second = placed(layers(2, heads=2, dim=16, tokens=5), torch.float16)
    mask = torch.ones(5, 5, dtype=torch.bool, device=DEVICE) if masked else None
    op = epilogue.control_forward if masked else short.short_forward
    with kernels("triton"), pytest.MonkeyPatch.context() as patch:
        _, state = pid_attention(q, k, v, None, GAINS)
        with Watch() as watch:
            seen, _ = pid_attention(*second, state, GAINS, attn_mask=mask)
        patch.setattr(op, "op", None)
        out, _ = pid_attention(*second, state, GAINS, attn_mask=mask)
    name = "control" if masked else "short_attention"
    assert f"pidformer.{name}.default" in watch.seen
    assert torch.equal(out, seen)


def test_plain_attention_module_is_packed():
    """The gradient of the projection is made by the kernel in one piece."""
    torch.manual_seed(0)
    attention = PIDAttention(32, 2, GAINS).to(DEVICE)
    x = torch.randn(1, 5, 32, device=DEVICE)
    with kernels("triton"), torch.autocast(DEVICE, torch.float16, enabled=DEVICE == "cuda"):
        out, state = attention(x)
    whole = state.previous.untyped_storage().nbytes() // state.previous.element_size()
    assert whole == 3 * x.numel() and not state.previous.is_contiguous()
    assert out.shape == x.shape


@pytest.mark.slow
def test_compiles_without_graph_breaks():
    blocks = network()
    x = torch.randn(2, 9, 32, device=DEVICE, requires_grad=True)

    def run(x):
        return scan_blocks(blocks, x)[0]

    found = []
    with kernels("triton"):
        for function in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
            out = function(x)
            found.append((out, *torch.autograd.grad(out.square().sum(), x)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_the_compiler_takes_every_kernel():
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("hopper.py")
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 51
