"""Trainings in processes of their own: several at once, killed, interrupted."""

import math
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from pidformer import results
from pidformer.runs.folder import load_checkpoint, load_weights
from pidformer.training import load_recipe
from pidformer.training.run import train
from tests.processes import COMMAND, ROOT, Process, ends_well, several, two
from tests.training.tiny import OPTIONS, controls, losses, same_weights


def launched(*arguments: str) -> str:
    """What the command prints under PyTorch's own launcher."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc_per_node", "2", "-m", "pidformer", *arguments),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


GIVEN = [
    f"model.options={OPTIONS}",
    "schedule.epochs=2",
    "schedule.warmup_epochs=1",
    "augment={crop: padded, padding: 1, mixup: 0.8}",
    "train.log_steps=1",
    "train.ema=0.9",
    "model.learn_gains=true",
]
SHARDED = ["train.parallel=fsdp", "train.checkpoint_steps=11", "train.grad_checkpointing=true"]
PARTS = ["train.accumulate=2"]


def command(out, *given):
    return ["train", "digits/pid.yaml", *GIVEN, *given, "--device", "cpu", "--out", str(out)]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """A run of two processes."""
    out = tmp_path_factory.mktemp("sharded") / "run"
    said = ends_well(*two(COMMAND, *command(out, *SHARDED, *PARTS)))
    assert said.count("top-1") == 1  # one process speaks
    return out


@pytest.mark.slow
def test_two_processes_have_the_loss_curve_of_one(sharded, tmp_path):
    scores = train(
        load_recipe("digits/pid.yaml", GIVEN), tmp_path / "one", device="cpu", is_shown=False
    )
    one = losses(tmp_path / "one")
    assert len(one) == 44 and abs(scores["ema_loss"] - scores["loss"]) > 1e-3
    said = launched(*command(tmp_path / "ddp", *PARTS))
    assert said.count("top-1") == 1  # one process speaks
    for out in (tmp_path / "ddp", sharded):
        many = losses(out)
        assert np.allclose(one, many, rtol=2e-4), np.abs(np.array(one) - many).max()
        found = [r for r in results.read(out) if r.kind == "evaluate"][-1].metrics
        assert controls(out) == pytest.approx(controls(tmp_path / "one"), rel=1e-3)
        for name in ("loss", "ema_loss"):
            assert found[name] == pytest.approx(scores[name], rel=1e-3)
        ours, learned = gains_of(tmp_path / "one"), gains_of(out)
        assert all((v - math.log(3)).abs().min() > 0.01 for k, v in ours.items() if "load" in k)
        assert len(ours) == 2 and all(torch.allclose(learned[k], ours[k], atol=1e-4) for k in ours)


def gains_of(run):
    return {k: v for k, v in load_weights(run / "model.safetensors").items() if "gains" in k}


@pytest.mark.slow
def test_a_killed_sharded_run_of_two_processes_ends_with_the_same_weights(sharded, tmp_path):
    killed = tmp_path / "killed"
    pair = two(COMMAND, *command(killed, *SHARDED, *PARTS))
    while not any((killed / "checkpoints").glob("step-*[1-9]*")):
        time.sleep(0.05)
        assert [process.poll() for process in pair] == [None, None]
    for process in pair:
        process.kill()
    assert [process.wait() for process in pair] == [-signal.SIGKILL] * 2
    assert not (killed / "model.safetensors").exists()
    ends_well(*two(COMMAND, *command(killed, *SHARDED, *PARTS)))
    assert same_weights(sharded, killed)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_run_goes_on_with_another_number_of_processes(tmp_path, parallel):
    """Two processes are killed, one goes on and is killed, three bring it to its end."""
    given = [
        f"model.options={OPTIONS}", "schedule.epochs=16", "data.batch_size=96", "train.ema=0.9",
        "augment={crop: padded, padding: 1, mixup: 0.8}", f"train.parallel={parallel}",
        "train.checkpoint_steps=6", "train.log_steps=2", "train.evaluate_every=16",
    ]  # fmt: skip
    calm, moved = tmp_path / "calm", tmp_path / "moved"
    train(load_recipe("digits/pid.yaml", given), calm, device="cpu", is_shown=False)
    command = [COMMAND, "train", "digits/pid.yaml", *given, "--device", "cpu", "--out", moved]
    steps = [0]
    for count in (2, 1):
        group = several(count, *command)
        while (step := newest(moved)) <= steps[-1]:
            time.sleep(0.01)
            assert [process.poll() for process in group] == [None] * count
        for process in group:
            process.kill()
            process.wait()
        steps.append(step)
    assert 0 < steps[1] < steps[2] and not (moved / "model.safetensors").exists()
    ends_well(*several(3, *command))
    one, many = losses(calm), losses(moved)
    assert len(one) == len(many) and np.allclose(one, many, rtol=2e-3)
    assert np.allclose(one[: steps[1] // 2], many[: steps[1] // 2], rtol=2e-4)


def newest(run):
    """The step of the newest checkpoint."""
    names = [path.name for path in (run / "checkpoints").glob("step-*")]
    return max((int(name.split("-")[1]) for name in names if name[5:].isdigit()), default=0)


TRACED = f"""
from torch import nn
whole = nn.Module.compile
nn.Module.compile = lambda self, options: whole(self, backend="aot_eager")  # in seconds
{COMMAND}
"""


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_compiled_processes_have_the_loss_curve_of_one(tmp_path, parallel):
    given = [*GIVEN, "schedule.steps=6", "schedule.warmup_epochs=0"]
    train(load_recipe("digits/pid.yaml", given), tmp_path / "one", device="cpu", is_shown=False)
    given += [f"train.parallel={parallel}", "train.compile=reduce-overhead", *PARTS]
    out = tmp_path / "two"
    words = ["train", "digits/pid.yaml", *given, "--device", "cpu", "--out", str(out)]
    main, other = two(TRACED, *words)
    ends_well(main, other)
    assert "compiling (about" in main.stderr
    assert losses(out) == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


@pytest.mark.slow
def test_processes_save_at_the_steps_of_the_recipe(tmp_path):
    """Whatever the log's steps are: together they agree about nothing else in between."""
    steps = ["schedule.steps=14", "train.checkpoint_steps=4", "train.log_steps=3"]
    script = (
        "from pidformer.runs import folder\n"
        "from pidformer.training import loop\n"
        "inner = loop.save_checkpoint\n"
        "def told(run, step, *more):\n"
        "    print('saved', step)\n"
        "    return inner(run, step, *more)\n"
        "loop.save_checkpoint = told\n"
    )
    said = ends_well(*two(script + COMMAND, *command(tmp_path / "run", *steps)))
    assert [int(step) for step in re.findall(r"saved (\d+)", said)] == [4, 8, 12, 14]


@pytest.mark.slow
def test_no_thread_of_the_process_group_outlives_a_training(tmp_path):
    """One that did could abort the process as Python ended, its work done."""
    script = (
        "import glob, sys\n"
        "from pidformer.training import load_recipe\n"
        "from pidformer.training.run import train\n"
        f"given = ['model.options={OPTIONS}', 'schedule.steps=2']\n"
        "recipe = load_recipe('digits/pid.yaml', given)\n"
        "train(recipe, sys.argv[1], device='cpu', is_shown=False)\n"
        "print([open(path).read() for path in glob.glob('/proc/self/task/*/comm')])\n"
    )
    said = ends_well(*two(script, tmp_path / "run"))
    assert said.count("python") >= 2 and "gloo" not in said


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--version"], ["no-such-command"]])
def test_a_launched_command_leaves_without_waiting_for_python_to_end(arguments):
    script = (
        "import atexit, sys; sys.argv[0] = 'pidformer'; from pidformer.cli import main; "
        "atexit.register(lambda: print('python ended', flush=True)); main(sys.argv[1:])"
    )
    for extra, is_waited_for in (({}, True), ({"LOCAL_RANK": "0"}, False)):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            capture_output=True,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "LOCAL_RANK"} | extra,
        )
        assert ("python ended" in done.stdout) == is_waited_for
        assert done.stdout.replace("python ended", "").strip() or done.stderr.strip()
        assert done.returncode == (0 if arguments == ["--version"] else 2)


@pytest.mark.slow
def test_interrupting_saves_and_says_how_to_go_on(tmp_path):
    run = tmp_path / "run"
    given = ["schedule.epochs=500", "train.log_steps=2", f"model.options={OPTIONS}"]
    process = Process(COMMAND, "train", "digits/pid", "--out", run, "--device", "cpu", *given)
    while not (run / results.FILE_NAME).exists() or len(results.read(run)) < 2:
        time.sleep(0.2)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert re.search(r"saved in .*; run the same command to go on", process.stderr)
    assert load_checkpoint(run) is not None
