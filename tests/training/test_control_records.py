"""The size of the control as a run trains: right, and without a trace in what is trained."""

import random

import numpy as np
import pytest
import torch

import pidformer as pf
from pidformer import results
from pidformer.analysis import control_scale
from pidformer.data import open_images, sample_images
from pidformer.runs.model import initial_model
from pidformer.training.loop import Trainer
from pidformer.training.run import train
from pidformer.training.tasks import LOOKED_AT, Classification
from tests.training.tiny import same_weights, tiny_recipe

pytestmark = pytest.mark.slow

IMAGES = sample_images(open_images("digits", "val"), LOOKED_AT, image_size=8).images


def run_of(folder, *overrides):
    train(tiny_recipe(*overrides), folder, device="cpu", is_shown=False, compile_on_cpu=True)
    return folder


def looks(run):
    return [r for r in results.read(run) if r.kind == "control"]


def others(run):
    """All other records, without clocks."""
    return [
        (r.kind, r.step, {k: v for k, v in r.metrics.items() if k != "images_per_second"})
        for r in results.read(run)
        if r.kind != "control"
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("runs") / "whole")


def test_the_curve_goes_from_the_first_weights_to_the_last(whole):
    found = looks(whole)
    assert [r.step for r in found] == [0, 11, 22, 33]
    assert [r.metrics["epoch"] for r in found] == [0, 1, 2, 3]
    for record, model in ((found[0], initial_model(whole)), (found[-1], pf.load(whole))):
        wanted = control_scale(model, IMAGES)
        assert record.details["ratio"] == pytest.approx(wanted.ratio.tolist(), rel=1e-5)
        assert record.metrics["ratio"] == pytest.approx(wanted.mean_ratio, rel=1e-5)
        assert record.details["ratio"][0] == 0 < record.details["ratio"][1]
    assert found[0].metrics["ratio"] != found[-1].metrics["ratio"]


def test_looking_changes_nothing_that_is_trained(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_look_at_control", lambda self: None)
        blind = run_of(tmp_path / "blind")
    assert same_weights(whole, blind) and others(whole) == others(blind) and not looks(blind)


def test_looking_draws_no_random_number_and_leaves_training_mode(tmp_path, monkeypatch):
    inner, calls = Trainer._look_at_control, []

    def watched(self):
        modes = [m.training for m in self.model.modules()]
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        inner(self)
        after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
        assert modes == [m.training for m in self.model.modules()]
        calls.append(self.step)

    monkeypatch.setattr(Trainer, "_look_at_control", watched)
    run_of(tmp_path / "run", "schedule.epochs=1")
    assert calls == [0, 11]


def test_a_softmax_run_is_not_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(Classification, "control_scale", lambda *_: 1 / 0)
    for gains in ("null", "0,0,0"):
        name = gains.replace(",", "")
        run = run_of(tmp_path / name, f"model.gains={gains}", "schedule.epochs=1")
        assert not looks(run)


def test_ramped_gains_count_as_they_act(tmp_path):
    options = ("schedule.gain_ramp=1", "train.precision=bf16", "model.learn_gains=true")
    run = run_of(tmp_path / "run", *options)
    found = [r.metrics["ratio"] for r in looks(run)]
    assert found[0] == 0 < found[1] < found[2] < found[3]
    whole = control_scale(pf.load(run), IMAGES).mean_ratio
    assert found[-1] == pytest.approx(whole, rel=1e-4)


def test_a_run_that_is_evaluated_by_steps_and_resumed_has_one_record_a_look(tmp_path, monkeypatch):
    options = ("train.evaluate_steps=4", "schedule.epochs=1", "train.checkpoint_steps=3")
    undisturbed = run_of(tmp_path / "undisturbed", *options)
    inner = Trainer._look_at_control

    def crash(self):
        inner(self)
        if self.step == 8:  # recorded, and after the checkpoint at step 6
            raise RuntimeError("crash")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_look_at_control", crash)
        with pytest.raises(RuntimeError, match="crash"):
            run_of(tmp_path / "run", *options)
    run = run_of(tmp_path / "run", *options)
    wanted = [(r.step, r.metrics, r.details) for r in looks(undisturbed)]
    assert [(r.step, r.metrics, r.details) for r in looks(run)] == wanted
    assert [step for step, _, _ in wanted] == [0, 4, 8, 11]
    run_of(tmp_path / "run", *options)  # finished: nothing is added
    assert len(looks(run)) == len(wanted)


@pytest.fixture
def graphs(monkeypatch):
    """What training compiles, by a compiler that only counts."""
    seen = []

    def backend(graph, _):
        seen.append(graph)
        return graph.forward

    monkeypatch.setattr(
        torch.nn.Module,
        "compile",
        lambda self, **_: setattr(
            self, "_compiled_call_impl", torch.compile(self._call_impl, backend=backend)
        ),
    )
    torch.compiler.reset()
    return seen


def test_a_compiled_model_is_looked_into_and_not_compiled_again(tmp_path, monkeypatch, graphs):
    options = ("schedule.epochs=1", "train.evaluate_steps=4", "train.compile=default")
    run, count = run_of(tmp_path / "seen", *options), len(graphs)
    with monkeypatch.context() as patch:
        graphs.clear()
        patch.setattr(Trainer, "_look_at_control", lambda self: None)
        blind = run_of(tmp_path / "blind", *options)
    assert count == len(graphs) > 0 and same_weights(run, blind)
    plain = run_of(tmp_path / "plain", *options[:2])
    for a, b in zip(looks(run), looks(plain), strict=True):
        assert a.details["ratio"] == pytest.approx(b.details["ratio"], rel=1e-3)


def test_a_process_that_trains_many_models_compiles_each(tmp_path, graphs):
    counts = []
    with torch._dynamo.config.patch(recompile_limit=1):  # 8 by default: then all is eager
        for gains in ("0.4,0.1,0.05,1", "0.6,0,0,1", "0.2,0,0,1"):
            options = (f"model.gains={gains!r}", "schedule.steps=2", "train.compile=default")
            run_of(tmp_path / gains, *options)
            counts.append(len(graphs))
    assert 0 < counts[0] < counts[1] < counts[2]
