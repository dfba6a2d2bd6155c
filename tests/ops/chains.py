"""Chains of layers on our kernels: on CUDA where there is a device, else in the interpreter."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from pidformer import PIDGains, pid_attention
from pidformer.nn import PIDBlock
from pidformer.ops import dispatch, kernels

triton = pytest.importorskip("triton", reason="the kernels need triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def has_interpreter():
    """Older interpreters take arrays of one number for numbers, which newer numpy refuses."""
    try:
        int(np.array([1]))
    except TypeError:
        return tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 7)
    return True


needs_kernels = pytest.mark.skipif(
    DEVICE == "cpu" and not has_interpreter(),
    reason="this Triton's interpreter does not work with this numpy",
)
GAINS = PIDGains(p=0.8, i=0.5, d=0.05, beta=0.1)
LIMIT = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
if DEVICE == "cuda":
    LIMIT[torch.float32] = 1e-5


def relative(found, expected):
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


@contextmanager
def ours(way):
    """Our kernels; those of one way, "short" or "epilogue"."""
    with pytest.MonkeyPatch.context() as patch, kernels("triton"):
        if way == "epilogue":
            patch.setattr(dispatch, "LONGEST", 0)
        yield


def chain(qkvs, gains, way, **options):
    """Outputs of all layers, by name of the way: which must be the one that runs."""
    state, outs, taken = None, [], set()
    real = dispatch.route

    def watched(*arguments, **keywords):
        found = real(*arguments, **keywords)
        taken.add(found)
        return found

    with pytest.MonkeyPatch.context() as patch, ours(way):
        patch.setattr(dispatch, "route", watched)
        for q, k, v in qkvs:
            out, state = pid_attention(q, k, v, state, gains, **options)
            outs.append(out)
    assert way in taken and taken <= {way, "torch"}
    return outs, state


def placed(qkvs, dtype, needs_grad=False):
    return [[x.to(DEVICE, dtype).requires_grad_(needs_grad) for x in layer] for layer in qkvs]


def network():
    torch.manual_seed(0)
    blocks = [PIDBlock(32, 2, GAINS) for _ in range(3)]
    return torch.nn.ModuleList(blocks).to(DEVICE)
