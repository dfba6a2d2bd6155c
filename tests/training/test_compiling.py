"""What the compiler is told, it knows."""

import pytest
import torch

from pidformer.training.engine import compile_options


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "has_graphs"), [("default", False), ("reduce-overhead", True)])
def test_the_options_are_those_of_the_mode_and_known_to_torch(mode, has_graphs):
    options = compile_options(mode)
    assert options.get("triton.cudagraphs", False) is has_graphs
    assert not any(value for name, value in options.items() if "mix_order" in name)
    torch.compile(torch.nn.Identity(), options=options)
    with pytest.raises(RuntimeError, match="nothing_of_the_kind"):
        torch.compile(torch.nn.Identity(), options=options | {"nothing_of_the_kind": True})
