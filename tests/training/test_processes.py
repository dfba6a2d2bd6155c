"""Trainings in processes of their own: several at once, killed, interrupted."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from pidformer import results
from pidformer.runs.folder import load_checkpoint
from pidformer.training import load_recipe
from pidformer.training.run import train
from tests.training.tiny import OPTIONS, controls, losses, same_weights

ROOT = Path(__file__).parents[2]
TWO = [
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
    "-m", "pidformer", "train",
]  # fmt: skip


@pytest.mark.slow
def test_two_processes_have_the_loss_curve_of_one(tmp_path):
    overrides = [
        f"model.options={OPTIONS}",
        "schedule.epochs=2",
        "schedule.warmup_epochs=1",
        "augment={crop: padded, padding: 1, mixup: 0.8}",
        "train.log_steps=1",
        "train.ema=0.9",
    ]
    recipe = load_recipe("digits/pid.yaml", overrides)
    scores = train(recipe, tmp_path / "one", device="cpu", is_shown=False)
    one = losses(tmp_path / "one")
    assert len(one) == 44 and abs(scores["ema_loss"] - scores["loss"]) > 1e-3
    for parallel in ("ddp", "fsdp"):
        out = tmp_path / parallel
        extra = [f"train.parallel={parallel}", "--device", "cpu", "--out", str(out)]
        done = subprocess.run(
            [*TWO, "digits/pid.yaml", *overrides, *extra],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("top-1") == 1  # one process speaks
        two = losses(out)
        assert np.allclose(one, two, rtol=2e-4), np.abs(np.array(one) - two).max()
        found = [r for r in results.read(out) if r.kind == "evaluate"][-1].metrics
        assert controls(out) == pytest.approx(controls(tmp_path / "one"), rel=1e-3)
        for name in ("loss", "ema_loss"):
            assert found[name] == pytest.approx(scores[name], rel=1e-3)


def ends_well(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
def test_a_killed_sharded_run_of_two_processes_ends_with_the_same_weights(tmp_path):
    command = [
        *TWO, "digits/pid.yaml", f"model.options={OPTIONS}", "schedule.epochs=3",
        "train.parallel=fsdp", "train.ema=0.9", "train.checkpoint_steps=11",
        "train.log_steps=11", "--device", "cpu", "--out",
    ]  # fmt: skip
    options = {"cwd": ROOT, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    ends_well([*command, str(whole)], **options)
    process = subprocess.Popen([*command, str(killed)], stderr=subprocess.DEVNULL, **options)
    while not any((killed / "checkpoints").glob("step-*[1-9]*")):
        time.sleep(0.05)
        assert process.poll() is None
    workers = psutil.Process(process.pid).children(recursive=True)  # in sessions of their own
    assert len(workers) == 2
    for worker in [*workers, process]:
        worker.kill()
    psutil.wait_procs(workers)
    process.wait()
    assert not (killed / "model.safetensors").exists()
    ends_well([*command, str(killed)], **options)
    assert same_weights(whole, killed)


@pytest.mark.slow
def test_no_thread_of_the_process_group_outlives_a_training(tmp_path):
    """One that did could abort the process as Python ended, its work done."""
    script = tmp_path / "script.py"
    script.write_text(
        "import glob, sys\n"
        "from pidformer.training import load_recipe\n"
        "from pidformer.training.run import train\n"
        f"given = ['model.options={OPTIONS}', 'schedule.epochs=1', 'schedule.warmup_epochs=0']\n"
        "recipe = load_recipe('digits/pid.yaml', given)\n"
        "train(recipe, sys.argv[1], device='cpu', is_shown=False)\n"
        "print([open(path).read() for path in glob.glob('/proc/self/task/*/comm')])\n"
    )
    done = subprocess.run(
        [*TWO[:-3], str(script), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "python" in done.stdout and "gloo" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--version"], ["no-such-command"]])
def test_a_launched_command_leaves_without_waiting_for_python_to_end(arguments):
    script = (
        "import atexit, sys; from pidformer.cli import main; "
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
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pidformer",
            "train",
            "digits/pid.yaml",
            "--out",
            str(run),
            "--device",
            "cpu",
            "schedule.epochs=500",
            "train.log_steps=2",
            f"model.options={OPTIONS}",
        ],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    while not (run / results.FILE_NAME).exists() or len(results.read(run)) < 2:
        time.sleep(0.2)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(r"saved in .*; run the same command to go on", errors)
    assert load_checkpoint(run) is not None
