"""What the compiler is told, it knows."""

import pytest
import torch

from pidformer.training.engine import compile_options
from pidformer.training.run import train
from tests.training.tiny import losses, tiny_recipe


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "has_graphs"), [("default", False), ("reduce-overhead", True)])
def test_the_options_are_those_of_the_mode_and_known_to_torch(mode, has_graphs):
    options = compile_options(mode)
    assert options.get("triton.cudagraphs", False) is has_graphs
    assert not any(value for name, value in options.items() if "mix_order" in name)
    torch.compile(torch.nn.Identity(), options=options)
    with pytest.raises(RuntimeError, match="nothing_of_the_kind"):
        torch.compile(torch.nn.Identity(), options=options | {"nothing_of_the_kind": True})


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_accumulation_in_cuda_graphs_gives_the_losses_of_the_whole_batch(tmp_path):
    """A graph's gradients lie where its next replay writes."""
    given = ["model.options.drop_path_rate=0", "schedule.epochs=1", "train.ema=null"]
    curves = []
    for more in ([], ["train.accumulate=4", "train.compile=reduce-overhead"]):
        run = tmp_path / str(len(more))
        train(tiny_recipe(*given, *more), run, device="cuda", is_shown=False)
        curves.append(losses(run))
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)
