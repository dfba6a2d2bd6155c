"""Train in children that are killed at random moments; print how often, and whether it mattered.

Run as a script, so that the children are forked from a process that has not trained anything:
python -m tests.training.kill FOLDER KILLS SEED
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from pidformer.runs.folder import load_weights
from pidformer.training.run import train
from tests.training.tiny import tiny_recipe


def child(folder: Path) -> int:
    """Start the training of `folder` in a forked process."""
    pid = os.fork()
    if pid == 0:
        try:
            train(tiny_recipe(), folder, device="cpu", is_shown=False)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return pid


def main(folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    begun = time.monotonic()
    assert os.waitpid(child(folder / "whole"), 0)[1] == 0
    length = time.monotonic() - begun
    expected = load_weights(folder / "whole" / "model.safetensors")
    chance = random.Random(seed)
    killed, runs, same = 0, 0, True
    while killed < kills or runs == 0:
        run = folder / f"killed-{runs}"
        finished = False
        while not finished:
            pid = child(run)
            if killed < kills:
                time.sleep(chance.uniform(0, 0.4) * length)
                os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            if os.WIFSIGNALED(status):
                killed += 1
            elif status == 0:
                finished = True
            else:
                sys.exit("the training failed by itself")
        found = load_weights(run / "model.safetensors")
        same &= all(torch.equal(found[name], expected[name]) for name in expected)
        runs += 1
    print(json.dumps({"killed": killed, "same": same}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
