"""Kill commands that write at random moments; print whether they end as undisturbed ones do.

Run as a script, so that the children are forked from a process that has not computed anything:
python -m tests.cli.kill RUN FOLDER KILLS SEED
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

import pidformer.evaluation.analysis
import pidformer.export
import pidformer.report.write
import pidformer.training.converted
import pidformer.tune  # noqa: F401  (imported once, here)
from pidformer import results
from pidformer.cli import main
from pidformer.files import is_temporary

COMMANDS = {
    "convert": ["convert", "RUN", "--gains", "0.4,0.1,0.05", "--out", "OUT"],
    "export": ["export", "RUN", "--out", "OUT.pt2"],
    "analyze": ["analyze", "RUN", "--device", "cpu", "--limit", "8", "--out", "OUT"],
    "report": ["report", "RUN", "--out", "OUT"],
    "tune": ["tune", "RUN", "--limit", "64", "--p", "0,0.4", "--i", "0,0.1", "--d", "0",
             "--device", "cpu"],
}  # fmt: skip
VARYING = (".png", ".svg", ".pt2", ".html", ".md", ".json", ".jsonl")
"""Files that hold times, places or ids: there and of the same name is enough."""


def child(arguments: list[str]) -> int:
    """Start a command in a forked process."""
    pid = os.fork()
    if pid == 0:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        try:
            main(arguments)
        except SystemExit as stopped:
            os._exit(int(stopped.code or 0))
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        os._exit(1)
    return pid


def found(place: Path) -> dict[str, object]:
    """What stands in a place: bytes of files that do not vary, and the numbers of records."""
    files = {str(p.relative_to(place)): p for p in sorted(place.rglob("*")) if p.is_file()}
    held: dict[str, object] = {n: p.suffix in VARYING or p.read_bytes() for n, p in files.items()}
    records = [dict(r.metrics) | {"seconds": 0.0} for r in results.read(place / "run")]
    return held | {"records": records}


def ending(run: Path, place: Path, command: str, kills: int, chance: random.Random) -> object:
    """The place after a command that was killed so often, each time within a second."""
    place.mkdir()
    shutil.copytree(run, place / "run")
    names = {"RUN": str(place / "run"), "OUT": str(place / "out"), "OUT.pt2": str(place / "a.pt2")}
    arguments = [names.get(word, word) for word in COMMANDS[command]]
    begun = time.monotonic()
    for _ in range(kills):
        pid = child(arguments)
        time.sleep(chance.uniform(0, 1.0))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if command == "convert" and (place / "out" / "model.safetensors").exists():
            shutil.rmtree(place / "out")  # written last, so it had ended: begin anew
    status = os.waitpid(child(arguments), 0)[1]
    assert status == 0, f"{command} ended with {status} after {time.monotonic() - begun:.0f} s"
    return found(place)


def check(run: Path, folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    chance, said = random.Random(seed), {}
    for command in COMMANDS:
        whole = ending(run, folder / f"{command}-whole", command, 0, chance)
        killed = ending(run, folder / f"{command}-killed", command, kills, chance)
        left = [str(p) for p in folder.rglob("*") if is_temporary(p)]
        said[command] = {"same": killed == whole, "left": left}
    print(json.dumps(said))


if __name__ == "__main__":
    check(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
