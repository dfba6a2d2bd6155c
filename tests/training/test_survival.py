"""What a run survives: weights that were not written, full disks, memory that changes."""

import json
import re
import shutil
import threading
import warnings

import pytest
import torch

import pidformer as pf
from pidformer import results
from pidformer.data import storage
from pidformer.errors import InputError
from pidformer.files import temporary_beside
from pidformer.runs import folder
from pidformer.runs.folder import load_checkpoint, save_checkpoint
from pidformer.training import loop
from pidformer.training.progress import TrainingProgress
from pidformer.training.run import train
from tests.data.sets import write_folders
from tests.processes import Process, ends_well
from tests.training.tiny import same_weights, stop_after, tiny_recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed run, and its scores."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, train(tiny_recipe(), folder, device="cpu", is_shown=False)


def test_a_run_that_ended_before_its_weights_were_written_gets_them(whole, tmp_path, monkeypatch):
    """Killed, or its disk full, after the last checkpoint and before model.safetensors."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_weights", lambda path, tensors: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(tiny_recipe(), run, device="cpu", is_shown=False)
    assert load_checkpoint(run).step == 33 and not (run / "model.safetensors").exists()
    assert train(tiny_recipe(), run, device="cpu", is_shown=False) == whole[1]
    assert same_weights(run, whole[0])


def test_a_run_goes_on_with_other_classes_not_at_all_and_with_more_images_with_a_warning(
    tmp_path, monkeypatch
):
    sizes = {"train": {"cat": 20, "dog": 20}, "val": {"cat": 4, "dog": 4}}
    write_folders(tmp_path / "set", sizes)
    write_folders(tmp_path / "more", sizes | {"train": {"cat": 20, "dog": 30}})
    fruit = {
        split: dict(zip(("apple", "pear"), n.values(), strict=True)) for split, n in sizes.items()
    }
    write_folders(tmp_path / "fruit", fruit)
    recipe = tiny_recipe(
        "data.mean=[0, 0, 0]", "data.std=[1, 1, 1]", "data.batch_size=8", "data.workers=0"
    )
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(patch, 8)
        with pytest.raises(RuntimeError, match="crash"):
            train(recipe, run, data=tmp_path / "set", device="cpu", is_shown=False)
    with pytest.raises(InputError, match=r"other data .the names of classes"):
        train(recipe, run, data=tmp_path / "fruit", device="cpu", is_shown=False)
    with pytest.warns(UserWarning, match="begun with 5 steps per epoch and goes on with 6"):
        train(recipe, run, data=tmp_path / "more", device="cpu", is_shown=False)


def test_a_run_that_ended_before_it_removed_old_checkpoints_removes_them(
    whole, tmp_path, monkeypatch
):
    """Killed, or its disk full, just after the last checkpoint."""
    run = tmp_path / "run"
    inner = folder.keep_newest
    with monkeypatch.context() as patch:
        patch.setattr(folder, "keep_newest", lambda run, n: 1 / 0 if n == 33 else inner(run, n))
        with pytest.raises(ZeroDivisionError):
            train(tiny_recipe(), run, device="cpu", is_shown=False)
    kept = sorted(path.name for path in (whole[0] / "checkpoints").iterdir())
    assert len(list((run / "checkpoints").iterdir())) == len(kept) + 1
    assert train(tiny_recipe(), run, device="cpu", is_shown=False) == whole[1]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == kept


def test_weights_that_a_full_disk_does_not_take_are_an_error_of_the_system(tmp_path):
    """The command line shows those in one line; safetensors has an exception of its own."""
    code = (
        "import resource, sys, torch\nfrom pathlib import Path\n"
        "from pidformer.runs.folder import save_weights\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "try:\n    save_weights(Path(sys.argv[1]), {'a': torch.zeros(10_000)})\n"
        "except OSError as error:\n    print(error)\n"
    )
    path = tmp_path / "model.safetensors"
    said = ends_well(Process(code, path))
    assert said == f"[Errno 27] File too large: '{path}'\n" and not list(tmp_path.iterdir())


def test_finished_weights_without_a_checkpoint_are_not_trained_over(whole, tmp_path):
    """Checkpoints were deleted to make room: neither weights nor measurements may be lost."""
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    shutil.rmtree(run / "checkpoints")
    results.append(run, results.Record(kind="robustness", metrics={"top1": 1.0}))
    before = (run / "results.jsonl").read_bytes()
    with pytest.raises(InputError, match="finished weights but no checkpoint"):
        train(tiny_recipe(), run, device="cpu", is_shown=False)
    assert (run / "results.jsonl").read_bytes() == before and same_weights(run, whole[0])


def test_what_a_kill_leaves_of_a_checkpoint_is_removed(tmp_path):
    half = temporary_beside(tmp_path / "run" / "checkpoints" / "step-00000001")
    half = half.with_name(re.sub(r"\d+-\d+-", "999999999-1-", half.name))  # of no living process
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    save_checkpoint(tmp_path / "run", 1, {"model": {"a": torch.zeros(1)}}, {})
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000001"]


def test_a_checkpoint_outlives_later_ones_that_are_damaged(tmp_path):
    """Both kept ones are damaged, training starts anew, and is stopped before it gets as far."""
    tensors = {"model": {"a": torch.zeros(1)}}
    for step in (8, 12):
        (save_checkpoint(tmp_path, step, tensors, {}) / "state.json").write_text("{")
    with pytest.warns(UserWarning, match="damaged") as said:
        assert load_checkpoint(tmp_path) is None
    assert "using the one before it" in str(said[0].message)
    assert "there is none before it" in str(said[1].message)
    save_checkpoint(tmp_path, 3, tensors, {"step": 3})
    assert load_checkpoint(tmp_path).step == 3
    save_checkpoint(tmp_path, 5, tensors, {"step": 5})
    assert sorted(p.name[-2:] for p in (tmp_path / "checkpoints").iterdir()) == ["03", "05"]


@pytest.mark.parametrize("text", ["[]", "{}", '{"model.safetensors": "0"}', "\xff"])
def test_checksums_that_name_nothing_are_damage(tmp_path, text):
    save_checkpoint(tmp_path, 1, {"model": {"a": torch.zeros(1)}}, {"step": 1})
    newest = save_checkpoint(tmp_path, 2, {"model": {"a": torch.zeros(1)}}, {"step": 2})
    (newest / "checksums.json").write_bytes(text.encode("latin-1"))
    (tmp_path / "checkpoints" / "step-copy").mkdir()  # a user's, not ours to count
    with pytest.warns(UserWarning, match="damaged"):
        assert load_checkpoint(tmp_path).step == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("recipe.yaml", b"model: {name: x", "recipe.yaml is damaged"),
        ("recipe.yaml", b"", "recipe.yaml is damaged"),
        ("recipe.yaml", b"- 1\n", "recipe.yaml is damaged"),
        ("recipe.yaml", b"seed: 1\nmodel: {}\n", "data must be a section"),
        (
            "recipe.yaml",
            b"seed: 1\nmodel: {name: x}\ndata: {}\ntrain: 3\n",
            "train must be a section",
        ),
        ("recipe.yaml", b"model: {}\ndata: {}\n", "must hold a seed"),
        ("recipe.yaml", b"\xff\xfe\x00", "recipe.yaml is damaged"),
        ("model.json", b'{"build": {', "model.json is damaged"),
        ("model.json", b"[]", "model.json is damaged"),
        ("model.json", None, "has no model.json"),
    ],
)
def test_a_damaged_file_of_a_run_is_named_in_one_line(whole, tmp_path, name, content, words):
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    (run / name).unlink()
    if content is not None:
        (run / name).write_bytes(content)
        with pytest.raises(InputError, match=words):
            train(tiny_recipe(), run, device="cpu", is_shown=False)
    with pytest.raises(InputError, match=words):
        pf.load(run)


def test_weights_of_another_model_are_refused_in_one_line(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    info = json.loads((run / "model.json").read_text())
    info["build"]["num_classes"] = 7
    (run / "model.json").write_text(json.dumps(info))
    with pytest.raises(InputError, match=r"head.weight is \(10, 16\) instead of \(7, 16\)"):
        pf.load(run)


def test_a_checkpoint_of_another_layout_is_refused_in_one_line(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    found = load_checkpoint(run)
    renamed = {f"old.{name}": value for name, value in found.tensors["model"].items()}
    for change in ({"model": renamed}, {"ema": renamed}):
        save_checkpoint(run, found.step, found.tensors | change, found.state)
        with pytest.raises(InputError, match=r"checkpoint of step 33 .* does not fit its recipe"):
            train(tiny_recipe(), run, device="cpu", is_shown=False)


@pytest.mark.parametrize("steps", [3, 23])  # before the first checkpoint; beyond that at 20
def test_tensorboard_shows_a_resumed_run_once(tmp_path, monkeypatch, steps):
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed (extra `track`)",
    )
    run, events = tmp_path / "run", tmp_path / "run" / "tensorboard"
    recipe = tiny_recipe("train.log_steps=2")
    with monkeypatch.context() as patch:
        stop_after(patch, steps)
        with pytest.raises(RuntimeError, match="crash"):
            train(recipe, run, device="cpu")
    (killed,) = events.iterdir()  # files are read in the order of their names: seconds, host, ...
    killed.rename(events / "events.out.tfevents.0000000001.host.1.0")
    train(recipe, run, device="cpu")
    train(recipe, run, device="cpu")  # finished: nothing is added
    assert len(list(events.iterdir())) == 2
    shown = reader.EventAccumulator(str(events), size_guidance={reader.SCALARS: 0}).Reload()
    for kind, tag in (("train", "train/loss"), ("evaluate", "val/top1")):
        name = tag.split("/")[1]
        records = [(r.step, r.metrics[name]) for r in results.read(run) if r.kind == kind]
        assert [step for step, _ in records] == sorted({step for step, _ in records})
        scalars = [(scalar.step, scalar.value) for scalar in shown.Scalars(tag)]
        assert scalars == [(step, pytest.approx(value)) for step, value in records]


def test_what_tensorboard_was_given_survives_a_kill(tmp_path):
    """Nothing closes the writer of a killed process, and a checkpoint may lie behind its events."""
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed (extra `track`)",
    )
    progress = TrainingProgress("run", tensorboard=tmp_path)
    progress.begin(0, 10)
    progress.advance(5)
    progress.measured({"loss": 0.5, "images_per_second": 1.0})
    shown = reader.EventAccumulator(str(tmp_path)).Reload()
    assert [(s.step, s.value) for s in shown.Scalars("train/loss")] == [(5, 0.5)]


@pytest.mark.parametrize("is_scarce", [True, False])
def test_memory_that_gets_scarce_or_free_changes_nothing(tmp_path, monkeypatch, is_scarce):
    """Images kept on the device and streamed ones are cropped by different random numbers."""
    free = {True: 1_000, False: 2**40}

    def memory(is_scarce):
        monkeypatch.setattr(storage, "_free_memory", lambda device: free[is_scarce])

    runs = tmp_path / "whole", tmp_path / "run"
    memory(not is_scarce)
    train(tiny_recipe(), runs[0], device="cpu", is_shown=False)
    with monkeypatch.context() as patch:
        stop_after(patch, 13)
        with pytest.raises(RuntimeError, match="crash"):
            train(tiny_recipe(), runs[1], device="cpu", is_shown=False)
    memory(is_scarce)
    train(tiny_recipe(), runs[1], device="cpu", is_shown=False)
    assert same_weights(*runs)


def test_a_full_disk_ends_the_log_for_tensorboard_with_one_line(tmp_path, monkeypatch):
    """TensorBoard's thread had written a traceback first."""
    writers = pytest.importorskip("tensorboard.summary.writer.record_writer")
    other = []
    monkeypatch.setattr(threading, "excepthook", other.append)
    inner, calls = writers.RecordWriter.write, []

    def full(self, data):
        calls.append(data)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        inner(self, data)

    monkeypatch.setattr(writers.RecordWriter, "write", full)
    said = r"cannot write to .*tensorboard \(No space left on device\); make room and run the same"
    with pytest.raises(InputError, match=said):
        train(tiny_recipe("train.log_steps=1"), tmp_path / "run", device="cpu")
    for thread in threading.enumerate():  # the writer's may not have ended yet
        if type(thread).__name__ == "_AsyncWriterThread":
            thread.join(1)
    assert other == []
    monkeypatch.undo()
    train(tiny_recipe("train.log_steps=1"), tmp_path / "run", device="cpu", is_shown=False)
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_run_that_goes_on_with_another_number_of_threads_says_so(whole, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    shutil.rmtree(max((run / "checkpoints").iterdir()))
    (run / "model.safetensors").unlink()
    other = shutil.copytree(run, tmp_path / "other")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(tiny_recipe(), run, device="cpu", is_shown=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    with pytest.warns(UserWarning, match=r"begun with 1 CPU threads and goes on with 7: .* bits"):
        train(tiny_recipe(), other, device="cpu", is_shown=False)
