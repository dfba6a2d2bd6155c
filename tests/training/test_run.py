import os
import shutil
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import pidformer as pf
from pidformer import results
from pidformer.errors import InputError
from pidformer.runs.folder import load_checkpoint, load_weights
from pidformer.runs.recipe import TrainRecipe
from pidformer.training.loop import Trainer
from pidformer.training.run import train
from tests.data.sets import write_folders
from tests.training.tiny import losses, same_weights, stop_after, tiny_recipe


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    scores = train(tiny_recipe(), folder, device="cpu", is_shown=False)
    return folder, scores


@pytest.mark.slow
@pytest.mark.parametrize("steps", [8, 13])  # between the log's lines at 5, 10 and 11; 15
def test_a_resumed_run_writes_the_log_of_an_undisturbed_one(whole, tmp_path, monkeypatch, steps):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(patch, steps)
        with pytest.raises(RuntimeError, match="crash"):
            train(tiny_recipe(), run, device="cpu", is_shown=False)
    train(tiny_recipe(), run, device="cpu", is_shown=False)
    clock = "images_per_second"
    logs = [
        [(r.step, {k: v for k, v in r.metrics.items() if k != clock}) for r in results.read(folder)]
        for folder in (run, whole[0])
    ]
    assert logs[0] == logs[1]


@pytest.mark.parametrize(
    ("train", "expected"),
    [({"evaluate_every": 2}, [8, 14]), ({"evaluate_steps": 3}, [3, 6, 9, 12, 14])],
)
def test_evaluations_come_every_so_many_epochs_or_steps_and_at_the_end(train, expected):
    """Of three and a half epochs of four steps; the end of a run counts once."""
    recipe, due = SimpleNamespace(train=TrainRecipe(**train)), []
    for step in range(1, 15):
        at = SimpleNamespace(
            recipe=recipe, step=step, last_step=14, data=SimpleNamespace(steps_per_epoch=4)
        )
        inside = Trainer._is_due(at, at_end=False)
        assert not (inside and step == 14)
        due += [step] if inside or (step in (4, 8, 12, 14) and Trainer._is_due(at, True)) else []
    assert due == expected


@pytest.mark.slow
def test_a_run_folder_holds_everything(whole):
    folder, scores = whole
    assert {p.name for p in folder.iterdir()} >= {
        "recipe.yaml",
        "model.json",
        "model.safetensors",
        "ema.safetensors",
        "results.jsonl",
        "checkpoints",
    }
    assert len(list((folder / "checkpoints").iterdir())) == 2
    final = [r for r in results.read(folder) if r.kind == "evaluate"][-1]
    assert final.metrics["top1"] == scores["top1"] and final.step == 33
    assert scores["top1_low"] < scores["top1"] < scores["top1_high"]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [4, 13, 30])
def test_a_crashed_run_ends_with_the_same_weights_and_records(whole, tmp_path, monkeypatch, steps):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(patch, steps)
        with pytest.raises(RuntimeError, match="crash"):
            train(tiny_recipe(), run, device="cpu", is_shown=False)
    scores = train(tiny_recipe(), run, device="cpu", is_shown=False)
    assert scores == whole[1]
    assert same_weights(run, whole[0])
    assert [r.step for r in results.read(run)] == [r.step for r in results.read(whole[0])]


@pytest.mark.slow
def test_no_checkpoint_is_ahead_of_its_records(whole, tmp_path, monkeypatch):
    """A run that dies as it evaluates, with a checkpoint due at that very step."""
    run, recipe = tmp_path / "run", tiny_recipe("train.checkpoint_steps=11")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(recipe, run, device="cpu", is_shown=False)
    assert train(recipe, run, device="cpu", is_shown=False) == whole[1]
    steps = [[r.step for r in results.read(f) if r.kind == "evaluate"] for f in (run, whole[0])]
    assert steps[0] == steps[1] == [11, 22, 33]


@pytest.mark.slow
def test_a_signal_in_the_last_step_lets_the_run_finish(whole, tmp_path, monkeypatch):
    run, inner = tmp_path / "run", Trainer._train_step

    def signalled(self, batch, rate):
        if self.step == self.last_step - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return inner(self, batch, rate)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_step", signalled)
        assert train(tiny_recipe(), run, device="cpu", is_shown=False) == whole[1]
    assert same_weights(run, whole[0])


@pytest.mark.slow
def test_the_newest_checkpoint_damaged_is_named_and_the_one_before_used(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    newest = sorted((run / "checkpoints").iterdir())[-1]
    file = newest / "optimizer.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.warns(UserWarning, match=r"optimizer.safetensors does not match its checksum"):
        found = load_checkpoint(run)
    assert found is not None and found.step == 32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert train(tiny_recipe(), run, device="cpu", is_shown=False) == whole[1]
    assert same_weights(run, whole[0])


@pytest.mark.slow
def test_a_full_disk_ends_with_a_clear_line_and_an_intact_run(whole, tmp_path, monkeypatch):
    import pidformer.runs.folder as module

    run = tmp_path / "run"
    inner, calls = module.save_file, []

    def full(tensors, path):
        calls.append(path)
        if len(calls) > 4:  # the second checkpoint
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        inner(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(module, "save_file", full)
        with pytest.raises(InputError, match=r"No space left.*last good checkpoint is step 4"):
            train(tiny_recipe(), run, device="cpu", is_shown=False)
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-00000004"]
    train(tiny_recipe(), run, device="cpu", is_shown=False)
    assert same_weights(run, whole[0])


@pytest.mark.slow
def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        train(tiny_recipe(), tmp_path / "file", device="cpu", is_shown=False)
    with pytest.raises(InputError, match="cannot write to"):
        train(tiny_recipe(), tmp_path / "file" / "run", device="cpu", is_shown=False)


@pytest.mark.slow
def test_a_run_of_another_recipe_is_refused_with_the_difference(whole):
    before = sorted(p.stat().st_mtime_ns for p in whole[0].rglob("*"))
    with pytest.raises(InputError, match=r"optim.lr: 0.004 -> 0.1.*another --out"):
        train(tiny_recipe("optim.lr=0.1"), whole[0], device="cpu", is_shown=False)
    assert sorted(p.stat().st_mtime_ns for p in whole[0].rglob("*")) == before


@pytest.mark.slow
def test_a_run_that_ended_before_its_first_checkpoint_may_be_changed(whole, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(RuntimeError, match="crash"):
            train(tiny_recipe("optim.lr=0.1"), run, device="cpu", is_shown=False)
    assert train(tiny_recipe(), run, device="cpu", is_shown=False) == whole[1]


def test_a_recipe_that_cannot_be_built_leaves_no_folder(tmp_path):
    with pytest.raises(InputError):
        train(tiny_recipe("model.gains=0,0,0,7"), tmp_path / "run", device="cpu", is_shown=False)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="not empty and not a run folder"):
        train(tiny_recipe(), tmp_path, device="cpu", is_shown=False)


@pytest.mark.slow
def test_a_run_that_was_killed_as_it_wrote_its_recipe_is_begun_anew(tmp_path):
    (tmp_path / ".recipe.4711-1-00000000.part.yaml").write_text("mod")
    train(tiny_recipe("schedule.epochs=1"), tmp_path, device="cpu", is_shown=False)
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.slow
def test_a_run_that_is_begun_anew_keeps_no_best_weights_of_the_one_before(tmp_path, monkeypatch):
    """Killed between its first evaluation and its first checkpoint, a run has lost its place."""
    run, options = tmp_path / "run", ("schedule.epochs=1", "train.checkpoint_steps=null")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", lambda self, final=False: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(tiny_recipe(*options, "train.keep_best=true"), run, device="cpu", is_shown=False)
    assert (run / "best.safetensors").exists()
    train(tiny_recipe(*options, "seed=1"), run, device="cpu", is_shown=False)
    used, last = pf.load(run).model.state_dict(), load_weights(run / "model.safetensors")
    assert all(torch.equal(used[key], last[key]) for key in last)


@pytest.mark.slow
def test_two_trainings_in_one_folder_are_refused(whole):
    import fcntl

    with open(whole[0] / ".lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is training in"):
            train(tiny_recipe(), whole[0], device="cpu", is_shown=False)
    train(tiny_recipe(), whole[0], device="cpu", is_shown=False)


@pytest.mark.slow
def test_a_finished_run_is_not_trained_again(whole):
    before = (whole[0] / "model.safetensors").stat().st_mtime_ns
    assert train(tiny_recipe(), whole[0], device="cpu", is_shown=False) == whole[1]
    assert (whole[0] / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.slow
def test_load_gives_a_model_ready_to_use(whole):
    model = pf.load(whole[0])
    images = torch.rand(3, 1, 8, 8)
    assert model(images).shape == (3, 10) and not model.training
    assert model.model.gains == pf.PIDGains(p=0.6, i=0.1, d=0.05)
    assert not torch.equal(model(images), pf.load(whole[0], ema=True)(images))
    with pytest.warns(UserWarning, match=r"trained with gains PIDGains\(p=0.6.*loaded with.*p=0.1"):
        other = pf.load(whole[0], gains="0.1,0,0")
    assert not torch.equal(model(images), other(images))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pf.load(whole[0], gains=pf.PIDGains(p=0.6, i=0.1, d=0.05))


@pytest.mark.slow
def test_loading_something_else_is_refused(tmp_path, whole):
    with pytest.raises(InputError, match="not a run folder"):
        pf.load(tmp_path)
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    (run / "model.safetensors").write_bytes(b"\x80\x04cos\nsystem\n")  # a pickle is not unpickled
    with pytest.raises(InputError, match="not a readable safetensors file"):
        pf.load(run)


@pytest.mark.slow
def test_accumulation_gives_the_gradient_of_the_whole_batch(tmp_path):
    options = ["model.options.drop_path_rate=0", "schedule.epochs=1", "train.ema=null"]
    curves = []
    for parts in (1, 4):
        run = tmp_path / str(parts)
        train(tiny_recipe(*options, f"train.accumulate={parts}"), run, device="cpu", is_shown=False)
        curves.append(losses(run))
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)


@pytest.mark.slow
def test_sgd_without_momentum_trains_and_resumes(tmp_path, monkeypatch):
    recipe = tiny_recipe("optim.name=sgd", "optim.momentum=0", "schedule.epochs=1")
    train(recipe, tmp_path / "whole", device="cpu", is_shown=False)
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(RuntimeError, match="crash"):
            train(recipe, tmp_path / "cut", device="cpu", is_shown=False)
    train(recipe, tmp_path / "cut", device="cpu", is_shown=False)
    assert same_weights(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.batch_size=2048", "larger than the training set"),
        ("train.accumulate=3", "choose a multiple"),
        ("data.mean=[0.1, 0.2, 0.3]", "1 value"),
        ("model.name=pid_deit_tny_patch16_224", "did you mean 'pid_deit_tiny_patch16_224'"),
        ("model.options.dept=3", "model.options.dept is not known; did you mean 'depth'?"),
        (
            "model.options.depth=0",
            "model.options.depth must be a whole number from 1 to 512, got 0",
        ),
        ("model.options.patch_size=0", "model.options.patch_size must be a whole number from 1"),
        ("model.options.embed_dim=-16", "model.options.embed_dim must be a whole number from 1"),
        ("model.options.drop_path_rate=2", "model.options.drop_path_rate must be in [0, 1), got 2"),
        ("model.options.mlp_ratio=.nan", "model.options.mlp_ratio must be above 0 and at most 64"),
        ("data.image_size=3", "images of 3 pixels hold no patch of (4, 4)"),
        ("model.gains=-1,0,0", "gain p"),
        ("train.precision=fp16", "CUDA"),
        ("data.name=imagenet", "--data"),
    ],
)
def test_settings_that_do_not_fit_get_one_clear_line(tmp_path, override, words):
    with pytest.raises(InputError) as caught:
        train(tiny_recipe(override), tmp_path / "run", device="cpu", is_shown=False)
    assert words in str(caught.value)


def test_one_class_is_nothing_to_learn(tmp_path):
    write_folders(tmp_path / "set", {"train": {"only": 8}, "val": {"only": 8}})
    recipe = tiny_recipe("data.mean=[0, 0, 0]", "data.std=[1, 1, 1]", "data.batch_size=8")
    with pytest.raises(InputError, match="has one class only, only; a classifier needs two"):
        train(recipe, tmp_path / "run", data=tmp_path / "set", device="cpu", is_shown=False)


@pytest.mark.slow
def test_bf16_learned_gains_and_checkpointing_train(tmp_path):
    recipe = tiny_recipe(
        "train.precision=bf16",
        "model.learn_gains=true",
        "train.grad_checkpointing=true",
        "schedule.epochs=1",
    )
    scores = train(recipe, tmp_path / "run", device="cpu", is_shown=False)
    assert np.isfinite(scores["loss"])
    model = pf.load(tmp_path / "run")
    learned = model.model.blocks[1].attn.gains.values()
    assert all(pf.control.is_stable(g) for g in learned)
    assert learned[0] != pf.PIDGains(p=0.6, i=0.1, d=0.05)
