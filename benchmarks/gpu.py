"""All that a GPU has to say, from one command: what is right, how fast, what becomes of each path.

    python -m benchmarks gpu --out DIR [--minutes 25] [PIECE...]
    python -m benchmarks gpu --out DIR --dry [PIECE...]     # on a CPU: do the pieces run?

In this order: what the device reaches (ceilings), the kernels against float64 (check), the tests
that need a device, every section of `pidformer bench`, the goals, the paths that have to be asked
for with a verdict each (`benchmarks.paths`), attacks on 512 images, a suite as users run it,
attention and control as one kernel (long), growth, ways to compile, the loop, and the loop on text.

Each piece is a process with a limit of its own, so that a crash or a hang costs that piece alone.
What it prints is shown, and kept in DIR/PIECE.txt; how it ended is a line of DIR/pieces.jsonl;
numbers go to DIR/results.jsonl. Pieces that are done in DIR are not run again unless they are
named: the same command goes on where the last one ended. Without an installation, PYTHONPATH=src.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.paths import PATHS
from pidformer.bench import SECTIONS
from pidformer.errors import unknown

ROOT = Path(__file__).parent.parent
SHORTEST = 20
"""Seconds that must be left for a piece to begin."""
BENCH_SECONDS = 480
"""For all sections of `pidformer bench` together, goal."""
PYTEST = "pytest -q --tb=short -p no:cacheprovider -p benchmarks._failures"
TEXT = "gutenberg/softmax.yaml"
WAYS = "now,descent,gelu,gelu+descent,mixed+descent,combo"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What is run behind `python -m`, and for how many seconds at most; {out} is the folder."""

    command: str
    limit: int
    gpu: str = ""
    """More words on a GPU."""
    dry: str | None = ""
    """More words in a dry run; None: it says nothing without a GPU."""
    needs: tuple[str, ...] = ()
    """Modules without which it is left out."""

    def words(self, folder: Path, *, is_dry: bool) -> list[str]:
        more = self.dry if is_dry else self.gpu
        return [word.format(out=folder) for word in shlex.split(f"{self.command} {more or ''}")]


def _pieces() -> dict[str, Piece]:
    marked = sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.gpu" in path.read_text()
    )
    limits = {"model": 420, "train": 240, "attack": 240}
    device: dict[str, Any] = {"gpu": "--device cuda", "dry": "--device cpu --rounds 1"}
    tests = ("pytest", "hypothesis")
    return {
        "ceilings": Piece(command="benchmarks.kernels ceilings", limit=60, dry=None),
        "check": Piece(command="benchmarks.kernels check", limit=420),
        "tests": Piece(
            command=f"{PYTEST} -m gpu --continue-on-collection-errors",
            gpu=" ".join(marked),
            dry="tests/ops",
            limit=300,
            needs=tests,
        ),
        "kernel-tests": Piece(
            command=f"{PYTEST} -m 'not slow'",
            gpu="tests/ops",
            dry="tests/ops/test_launch.py",
            limit=240,
            needs=tests,
        ),
        **{
            f"bench-{name}": Piece(
                command=f"pidformer bench {name} --out {{out}}",
                limit=limits.get(name, 150),
                needs=("transformers",) if name == "generate" else (),
                **device,
            )
            for name in SECTIONS
        },
        "goals": Piece(command="benchmarks.goals --read {out}", limit=60),
        **{
            name: Piece(command=f"benchmarks.paths {name} --out {{out}}", limit=180, **device)
            for name in PATHS
        },
        "attacks-512": Piece(
            command="benchmarks.attacks --image 64 --steps 10 --rounds 3",
            gpu="--device cuda --batch 512",
            dry="--batch 2",
            limit=120,
        ),
        "suite": Piece(command="benchmarks.suite --out {out}", limit=180, **device),
        "sliding": Piece(
            command="benchmarks.language --only sliding",
            limit=300,
            dry="--device cpu --tokens 264 --naive 2 --batch 4",
        ),
        "long": Piece(command="benchmarks.long --out {out}", limit=300, **device),
        "growth": Piece(command="benchmarks.growth --out {out}", limit=180, **device),
        "ways": Piece(
            command=f"benchmarks.ways --only {WAYS} --out {{out}}/ways-kernels.txt",
            limit=480,
            dry=None,
        ),
        "loop": Piece(command="benchmarks.loop", limit=180, dry="--device cpu"),
        **{
            f"loop-text-{mode}": Piece(
                command=f"benchmarks.loop --gains none --recipe {TEXT} --set train.compile={mode}",
                limit=240,
                dry="data.batch_size=2 text.length=8 model.options.num_hidden_layers=2 "
                "--device cpu",
                needs=("transformers",),
            )
            for mode in ("default", "reduce-overhead")
        },
    }


PIECES = _pieces()


def main() -> None:
    options = _options()
    if not options.dry and not torch.cuda.is_available():
        sys.exit("benchmarks gpu needs a CUDA device; --dry tries its pieces on this CPU")
    if wrong := [name for name in options.pieces if name not in PIECES]:
        raise unknown("piece", wrong[0], PIECES)
    options.out.mkdir(parents=True, exist_ok=True)
    options.out = options.out.resolve()
    ended = time.monotonic() + 60 * options.minutes
    done = {} if options.pieces else {k: x for k, x in _read(options.out) if x["state"] == "done"}
    for name in options.pieces or PIECES:
        if name in done:
            continue
        found = run_piece(
            PIECES[name], options.out / f"{name}.txt", ended - time.monotonic(), is_dry=options.dry
        )
        with (options.out / "pieces.jsonl").open("a") as file:
            file.write(json.dumps({"piece": name, **found}) + "\n")
        print(f"-- {name}: {_state(found)}", flush=True)
    sys.exit(summary(options.out))


def run_piece(piece: Piece, log: Path, left: float, *, is_dry: bool) -> dict[str, Any]:
    """Run a piece, show what it prints as it comes, and say how it ended."""
    missing = [name for name in piece.needs if find_spec(name) is None]
    if missing:
        return {"state": "left out", "why": f"{', '.join(missing)} not installed"}
    if is_dry and piece.dry is None:
        return {"state": "left out", "why": "it says nothing without a GPU"}
    if left < SHORTEST:
        return {"state": "left out", "why": "no time is left"}
    command = [sys.executable, "-m", *piece.words(log.parent, is_dry=is_dry)]
    print(f"\n## {' '.join(command[2:])}\n", flush=True)
    begun, limit = time.monotonic(), min(piece.limit, left)
    # Unbuffered: what is stopped has said how far it came.
    environment = {**os.environ, "COLUMNS": "160", "PYTHONUNBUFFERED": "1"}
    if is_dry:
        environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    with log.open("w") as written, log.open() as seen, _process(command, written, environment) as p:
        code = None
        while code is None and time.monotonic() - begun < limit:
            with suppress(subprocess.TimeoutExpired):
                code = p.wait(timeout=0.2)
            sys.stdout.write(seen.read())
            sys.stdout.flush()
    seconds = round(time.monotonic() - begun, 1)
    if code is None:
        return {"state": "stopped", "why": f"not done within {limit:.0f} s", "seconds": seconds}
    if code:
        lines = log.read_text().strip().splitlines() or [""]
        return {"state": "failed", "why": f"exit code {code}: {lines[-1]}", "seconds": seconds}
    return {"state": "done", "seconds": seconds}


@contextmanager
def _process(
    command: list[str], log: Any, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process and, at the end, the end of all that it began."""
    process = subprocess.Popen(
        command,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def summary(folder: Path) -> int:
    """Print how each piece ended last, goals and verdicts; the number of pieces that went wrong."""
    ended = dict(_read(folder))
    print("\n| piece | how it ended |\n|---|---|")
    for name, found in ended.items():
        print(f"| {name} | {_state(found)} |")
    for name in ("goals", "ceilings"):
        if ended.get(name, {}).get("state") == "done":
            print((folder / f"{name}.txt").read_text())
    bench = [ended.get(f"bench-{name}", {}) for name in SECTIONS]
    if all(found.get("state") == "done" for found in bench):
        seconds = sum(found["seconds"] for found in bench)
        print(f"all of `pidformer bench`: {seconds:.0f} s, goal {BENCH_SECONDS} s or less")
    verdicts = folder / "verdicts.jsonl"
    lines = map(json.loads, verdicts.read_text().splitlines() if verdicts.exists() else ())
    last = {line["path"]: line for line in lines}
    print("\n| path | verdict | why |\n|---|---|---|")
    for name, line in last.items():
        print(f"| {name} | {line['verdict']} | {line['why']} |")
    sys.stdout.flush()
    return sum(found["state"] in ("failed", "stopped") for found in ended.values())


def _read(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    file = folder / "pieces.jsonl"
    lines = map(json.loads, file.read_text().splitlines() if file.exists() else ())
    return [(line["piece"], line) for line in lines]


def _state(found: Mapping[str, Any]) -> str:
    seconds = f" in {found['seconds']:.0f} s" if "seconds" in found else ""
    return f"{found['state']}{seconds}{': ' * ('why' in found)}{found.get('why', '')}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help=", ".join(PIECES))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--minutes", type=float, default=25.0, help="for all pieces together")
    parser.add_argument("--dry", action="store_true", help="on a CPU, tiny sizes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
