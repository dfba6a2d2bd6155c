"""The benchmark of our kernels measures what it says."""

import pytest
import torch

from benchmarks import kernels as benchmark
from pidformer import pid_attention
from pidformer.ops import kernels, short
from pidformer.ops.dispatch import Tiles
from tests.ops.chains import DEVICE, GAINS, needs_kernels


@needs_kernels
@pytest.mark.parametrize("name", ["forward_tiles", "backward_tiles"])
def test_tuning_measures_each_of_the_tiles_and_leaves_none_behind(name, monkeypatch):
    taken, real = [], short.launch

    def noted(*given):
        taken.append(given[-1])
        real(*given)

    def run():
        q = torch.randn(1, 1, 5, 16, dtype=torch.float16, device=DEVICE, requires_grad=True)
        with kernels("triton"):
            out, _ = pid_attention(q, q, q, None, GAINS)
        out.sum().backward()
        return taken[-1 if name == "backward_tiles" else -2]

    monkeypatch.setattr(short, "launch", noted)
    usual = run()
    for tiles in (Tiles(rows=n, keys=16, warps=4, stages=1) for n in (16, 32)):
        with benchmark._tiles(**{name: tiles}):
            assert run() == tiles
    assert run() == usual
