"""Ctrl-C and SIGTERM, in real processes: how soon a command ends, what it says, what it saved."""

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from pidformer.interrupts import SIGNALS
from pidformer.runs.folder import load_checkpoint
from tests.processes import COMMAND, ROOT, Process
from tests.training.tiny import OPTIONS

pytestmark = pytest.mark.slow

LINE = {signal.SIGINT: "pidformer: interrupted", signal.SIGTERM: "pidformer: terminated"}
STOPPING = "pidformer: stopping after this step, saved; once more to leave at once"
IDS = ["Ctrl-C", "SIGTERM"]


def start(*arguments: str, patch: str = "", **environment: str) -> Process:
    """A command in a process of its own, with `patch` run before; Ctrl-C is not ignored there."""
    code = f"""
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
{textwrap.dedent(patch)}
{COMMAND}
"""
    return Process(code, *arguments, **environment)


def read_until(process: Process, word: str) -> None:
    ends = time.monotonic() + 60
    while word not in process.stderr and process.poll() is None and time.monotonic() < ends:
        time.sleep(0.02)
    assert word in process.stderr, f"{word!r} was never said"


def ended(process: Process, within: float, after: str = "") -> tuple[int, list[str]]:
    """Its exit code, and the lines that it said behind the word `after`."""
    begun = time.monotonic()
    code = process.wait(60)
    assert time.monotonic() - begun < within
    said = process.stderr
    if after:
        said = said.rpartition(after)[2].partition("\n")[2]
    return code, [line for line in said.split("\n") if line]


def train(out: Path, *overrides: str, patch: str = "") -> Process:
    options = (f"model.options={OPTIONS}", "schedule.epochs=500", *overrides)
    return start(
        *("train", "digits/pid", "--device", "cpu", "--out", str(out), *options),
        patch=patch,
        TORCHINDUCTOR_CACHE_DIR=str(out.parent),  # nothing is compiled yet
    )


STEP = """
    from pidformer.training.loop import Trainer
    inner = Trainer._train_step
    def step(self, batch, rate):
        if self.step == 3:
            print("in a step", file=sys.stderr, flush=True)
            {wait}
        return inner(self, batch, rate)
    Trainer._train_step = step
"""
DEEP = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"
"""Many minutes in C, where no Python handler is called."""


@pytest.mark.parametrize("number", SIGNALS, ids=IDS)
def test_training_ends_after_the_step_it_is_in_and_saves(tmp_path, number):
    process = train(tmp_path / "run", patch=STEP.format(wait="time.sleep(1)"))
    read_until(process, "in a step")
    process.send_signal(number)
    code, said = ended(process, within=10, after="in a step")
    assert code == 128 + number
    assert said == [STOPPING, f"saved in {tmp_path / 'run'}; run the same command to go on"]
    assert load_checkpoint(tmp_path / "run").step == 4


@pytest.mark.parametrize(
    ("number", "wait"), [(signal.SIGINT, DEEP), (signal.SIGTERM, "time.sleep(60)")]
)
def test_the_second_signal_ends_training_at_once(tmp_path, number, wait):
    process = train(tmp_path / "run", patch=STEP.format(wait=wait))
    read_until(process, "in a step")
    process.send_signal(number)
    time.sleep(1)
    assert process.poll() is None  # it wants to finish its step
    process.send_signal(number)
    code, said = ended(process, within=5, after="in a step")
    assert code == 128 + number
    assert said in ([STOPPING, LINE[number]], [LINE[number]])  # C hears nothing of the first


@pytest.mark.parametrize("number", SIGNALS, ids=IDS)
def test_a_signal_while_compiling_ends_in_five_seconds_with_one_line(tmp_path, number):
    process = train(tmp_path / "run", "train.compile=default")
    read_until(process, "compiling (about 80 s)")
    time.sleep(4)
    process.send_signal(number)
    code, said = ended(process, within=6, after="compiling (about 80 s)")
    assert code == 128 + number
    assert [line for line in said if "No CUDA runtime" not in line] == [LINE[number]]


def test_every_command_ends_soon_even_where_it_hears_nothing():
    patch = f"""
        import pidformer.control as module
        def deaf(*_, **__):
            print("busy", file=sys.stderr, flush=True)
            {DEEP}
        module.stability_report = deaf
    """
    process = start("stability", "--gains", "0.4,0.1,0.05", patch=patch)
    read_until(process, "busy")
    process.send_signal(signal.SIGINT)
    code, said = ended(process, within=6, after="busy")
    assert code == 130 and said == [LINE[signal.SIGINT]]


def test_a_recipe_that_compiles_does_not_on_a_cpu(tmp_path):
    process = train(
        tmp_path / "run",
        "schedule.steps=1",
        patch="""
        import pidformer.training.recipe as module
        inner = module.load_recipe
        module.load_recipe = lambda name, given: inner(name, [*given, "train.compile=default"])
    """,
    )
    code, said = ended(process, within=60)
    assert code == 0 and "not compiled, as this is a CPU" in said[0]
    assert not any("compiling" in line for line in said)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
def test_a_signal_while_libraries_are_loaded_is_one_line():
    process = subprocess.Popen(
        [sys.executable, "-m", "pidformer", "stability"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.01)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=6)
    assert process.returncode == 130 and said.splitlines() == [LINE[signal.SIGINT]]
