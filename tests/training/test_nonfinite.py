"""Losses and gradients that are no numbers."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from pidformer import results
from pidformer.errors import InputError
from pidformer.runs.folder import load_weights
from pidformer.training.engine import Engine
from pidformer.training.nonfinite import NonFiniteWatch
from pidformer.training.run import train
from pidformer.training.tasks import Classification
from tests.training.tiny import stop_after, tiny_recipe


@pytest.mark.slow
def test_a_loss_that_is_no_number_stops_with_a_diagnosis(tmp_path):
    recipe = tiny_recipe("optim.lr=1e30", "optim.clip=null", "model.gains=0.8,0.5,0.05,0.1")
    with pytest.raises(InputError) as caught:
        train(recipe, tmp_path / "run", device="cpu", is_shown=False)
    message = str(caught.value)
    for words in (
        "at step",
        "learning rate",
        "largest gradient norm",
        "unstable on [0, 1]",
        "train.on_nan=skip",
    ):
        assert words in message


class Late(NonFiniteWatch):
    """Reads the number of each step one step late, as on a CUDA device."""

    held: tuple[torch.Tensor, int, float] | None = None

    def accepts(self, value, norm, step, rate):
        self.check_now()
        self.held = value, step, rate
        return True

    def check_now(self):
        if self.held is not None and not self.held[0].isfinite():
            self._stop(float(self.held[0]), *self.held[1:])


@pytest.mark.slow
def test_weights_that_are_no_numbers_are_not_evaluated(tmp_path, monkeypatch):
    inner, calls = Classification.loss, []

    def second_is_nan(self, model, batch):
        calls.append(1)
        return inner(self, model, batch) * (torch.nan if len(calls) == 2 else 1.0)

    monkeypatch.setattr(Classification, "loss", second_is_nan)
    monkeypatch.setattr("pidformer.training.loop.NonFiniteWatch", Late)
    recipe = tiny_recipe("train.evaluate_steps=2", "train.keep_best=true")
    with pytest.raises(InputError, match="became nan at step 1"):
        train(recipe, tmp_path / "run", device="cpu", is_shown=False)
    assert {r.kind for r in results.read(tmp_path / "run")} == {"control"}  # of the first weights
    assert not (tmp_path / "run" / "best.safetensors").exists()


@pytest.mark.slow
def test_steps_without_a_finite_gradient_can_be_skipped(tmp_path, monkeypatch):
    inner, calls = Classification.loss, []

    def sometimes_nan(self, model, batch):
        calls.append(1)
        return inner(self, model, batch) * (torch.nan if len(calls) in (3, 7) else 1.0)

    monkeypatch.setattr(Classification, "loss", sometimes_nan)
    run = tmp_path / "run"
    recipe = tiny_recipe("train.on_nan=skip")
    scores = train(recipe, run, device="cpu", is_shown=False)
    assert np.isfinite(scores["loss"])
    logged = [r.metrics for r in results.read(run) if r.kind == "train"]
    assert logged[-1]["skipped_steps"] == 2 and all(np.isfinite(m["loss"]) for m in logged)
    assert all(w.isfinite().all() for w in load_weights(run / "model.safetensors").values())
    calls.clear()
    with monkeypatch.context() as patch:  # a resumed run has not forgotten what it skipped
        stop_after(patch, 24)
        with pytest.raises(RuntimeError, match="crash"):
            train(recipe, tmp_path / "cut", device="cpu", is_shown=False)
    train(recipe, tmp_path / "cut", device="cpu", is_shown=False)
    again = [r.metrics for r in results.read(tmp_path / "cut") if r.kind == "train"]
    assert [m["skipped_steps"] for m in again] == [m["skipped_steps"] for m in logged]


@pytest.mark.slow
def test_a_step_that_is_skipped_in_half_precision_leaves_the_scaler_ready(tmp_path, monkeypatch):
    """On the CPU, with float32 and the scaler that float16 has on a GPU."""
    inner, loss, calls = Engine.__init__, Classification.loss, []

    def scaled(self, recipe, *rest, **options):
        inner(self, dataclasses.replace(recipe, precision="fp32"), *rest, **options)
        self._accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self._accelerator.native_amp, self._accelerator.state._mixed_precision = True, "fp16"

    def sometimes_nan(self, model, batch):
        calls.append(1)
        return loss(self, model, batch) * (torch.nan if len(calls) in (3, 7) else 1.0)

    monkeypatch.setattr(Engine, "__init__", scaled)
    monkeypatch.setattr(Classification, "loss", sometimes_nan)
    recipe = tiny_recipe("train.on_nan=skip", "train.precision=fp16", "schedule.epochs=1")
    try:
        scores = train(recipe, tmp_path / "run", device="cpu", is_shown=False)
    finally:
        Accelerator().state._mixed_precision = "no"  # shared by all of this process
    logged = [r.metrics for r in results.read(tmp_path / "run") if r.kind == "train"]
    assert logged[-1]["skipped_steps"] == 2 and np.isfinite(scores["loss"])
    state = json.loads(next((tmp_path / "run" / "checkpoints").glob("*11/state.json")).read_text())
    assert state["scaler"]["scale"] == 256.0  # halved at each
