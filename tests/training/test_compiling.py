"""What the compiler is told, it knows."""

import pytest
import torch

from pidformer.training.engine import Engine, compile_options
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


@pytest.mark.slow
def test_gradients_are_taken_out_of_a_graph_once_before_others_are_added(tmp_path, monkeypatch):
    calls, keep = [], Engine.keep_gradients

    def kept(engine, model):
        before = [p.grad.data_ptr() for p in model.parameters()]
        engine.has_graphs = True  # which no CPU has
        keep(engine, model)
        after = [p.grad.data_ptr() for p in model.parameters()]
        calls.append(all(a != b for a, b in zip(before, after, strict=True)))

    monkeypatch.setattr(Engine, "keep_gradients", kept)
    given = ["model.options.drop_path_rate=0", "schedule.epochs=1", "train.ema=null"]
    curves = []
    for parts in (1, 4):
        run = tmp_path / str(parts)
        train(tiny_recipe(*given, f"train.accumulate={parts}"), run, device="cpu", is_shown=False)
        curves.append(losses(run))
        assert parts > 1 or not calls
    assert len(calls) == 11 and all(calls)  # once per step
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)


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
