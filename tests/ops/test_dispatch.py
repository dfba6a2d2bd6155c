"""The way that inputs take: the same when compiled as when not."""

import pytest
import torch

from pidformer.control import PIDGains
from pidformer.nn import PIDBlock
from pidformer.nn.depth import scan_blocks
from pidformer.ops import dispatch, kernels

pytest.importorskip("triton", reason="the kernels need triton")


@pytest.mark.parametrize("gains", [None, PIDGains(p=0.4, i=0.1, d=0.05)])
@pytest.mark.parametrize("name", ["torch", "triton"])
def test_a_compiled_network_takes_the_kernels_asked_for(monkeypatch, gains, name):
    """Only traced, so that no interpreter is needed."""
    monkeypatch.setitem(dispatch._checked, ("cpu", None), None)  # as if Triton ran here
    blocks = torch.nn.ModuleList(PIDBlock(32, 2, gains) for _ in range(3))
    found: list[str] = []

    def look(module, _):
        graphs = [part.graph for part in module.modules() if hasattr(part, "graph")]
        found.extend(str(node.target) for graph in graphs for node in graph.nodes)
        return _stop

    torch.compiler.reset()
    run = torch.compile(lambda x: scan_blocks(blocks, x)[0], backend=look)
    with kernels(name), pytest.raises(StopIteration):
        run(torch.randn(2, 9, 32))
    assert any("pidformer.short_attention" in target for target in found) == (name == "triton")
    assert any("scaled_dot_product" in target for target in found) == (name == "torch")


def _stop(*_):
    raise StopIteration
