"""Work on a tiny plan in children that are killed at random; print whether it mattered.

Run as a script, so that the children are forked from a process that has not trained anything:
python -m tests.reproduce.kill FOLDER KILLS SEED
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from pidformer.reproduce import run_plan
from pidformer.reproduce.job_kinds import JobSetting
from tests.reproduce.tiny import records_of, tiny_plan


def child(inputs: Path, out: Path) -> int:
    """Start the plan in a forked process."""
    pid = os.fork()
    if pid == 0:
        try:
            plan = tiny_plan(inputs, out)
            found = run_plan(plan, JobSetting(device="cpu"), is_shown=False, beat=0.2, poll=0.1)
            if found.failed:
                print(found.failed, file=sys.stderr)
            os._exit(1 if found.failed else 0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    return pid


def main(folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    begun = time.monotonic()
    assert os.waitpid(child(folder / "inputs", folder / "whole"), 0)[1] == 0
    length = time.monotonic() - begun
    chance = random.Random(seed)
    killed, finished = 0, False
    while not finished:
        pid = child(folder / "inputs", folder / "killed")
        if killed < kills:
            # shares of the whole, so that the kills fall on different jobs; a machine that has
            # become faster in between may end before the last of them
            time.sleep(chance.uniform(0.05, 0.8 / kills) * length)
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status):
            killed += 1
        elif status == 0:
            finished = True
        else:
            sys.exit("the plan failed by itself")
    same = records_of(folder / "whole") == records_of(folder / "killed")
    # not the temporary names, at one of which a kill may have fallen
    jobs = sorted((folder / "killed" / "jobs").glob("[!.]*.json"))
    starts = {path.stem: json.loads(path.read_text())["starts"] for path in jobs}
    left = [path.name for path in (folder / "killed" / "claims").iterdir()]
    print(json.dumps({"killed": killed, "same": same, "starts": starts, "claims": left}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
