"""All that a GPU has to say, from one command: what is right, how fast, what becomes of each path.

    python -m benchmarks gpu --out DIR [--minutes 25] [PIECE...]
    python -m benchmarks gpu --out DIR --dry [PIECE...]     # on a CPU: do the pieces run?

The most valuable first. Beside each other, as they time nothing: the kernels against float64 and
the tests that need a device. Then one by one: what the device reaches, the rows that the goals are
about, the paths that have to be asked for with a verdict each (`benchmarks.paths`), attention and
control as one kernel, and what has no goal. The goals close every call.

Each piece is a process with a limit of its own, so that a crash or a hang costs that piece alone;
it begins if half of its limit is left. What it prints is shown, and kept in DIR/PIECE.txt; how it
ended is a line of DIR/pieces.jsonl; numbers go to DIR/results.jsonl as they come. The same command
goes on where the last one ended: what is done, has failed or used up its limit is not run again,
unless it is named. Without an installation, PYTHONPATH=src.
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
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from benchmarks import goals
from pidformer.devices import usable_cores
from pidformer.errors import unknown

ROOT = Path(__file__).parent.parent
AT_ONCE = max(1, min(12, usable_cores() - 4))
"""Pieces beside each other; most of their time they compile."""
BENCH_SECONDS = 480
"""For all sections of `pidformer bench` together, goal."""
PYTEST = "pytest -q --tb=short -p no:cacheprovider -p benchmarks._failures"
TEXT = "gutenberg/softmax.yaml"
MARK = "pytest.mark.gpu"
PARTS = 5
"""Of the check, each a process."""
WAYS = "now,descent,gelu,gelu+descent,mixed+descent,combo"
DEVICE: dict[str, Any] = {"gpu": "--device cuda", "dry": "--device cpu --rounds 1"}


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
    is_timed: bool = True
    """Whether it needs the device for itself."""

    def words(self, folder: Path, *, is_dry: bool) -> list[str]:
        more = self.dry if is_dry else self.gpu
        return [word.format(out=folder) for word in shlex.split(f"{self.command} {more or ''}")]

    def why_not(self, left: float, *, is_dry: bool) -> str:
        """Why it does not begin; "" if it does."""
        if missing := [name for name in self.needs if find_spec(name) is None]:
            return f"{', '.join(missing)} not installed"
        if is_dry and self.dry is None:
            return "it says nothing without a GPU"
        return "no time is left" if left < self.limit / 2 else ""


def _pieces() -> dict[str, Piece]:
    return {
        **_checks(),
        "ceilings": Piece(command="benchmarks.kernels ceilings", limit=60, dry=None),
        "bench-model-tiny-graphs": _network("tiny-graphs", 480),
        "bench-operator": _bench("operator", 240),
        "bench-attack": _bench("attack", 200),
        "bench-train": _bench("train", 240),
        "bench-generate": _bench("generate", 280),
        "bench-model-small-compiled": _network("small-compiled", 240),
        "bench-model-base-compiled": _network("base-compiled", 240),
        **{name: _path(name, 160) for name in ("prefetch", "direct", "gelu", "exclude")},
        "long": Piece(command="benchmarks.long --out {out}", limit=400, **DEVICE),
        "bench-model-tiny-compiled": _network("tiny-compiled", 300),
        "recorded": _path("recorded", 160),
        "attacks-512": Piece(
            command="benchmarks.attacks --image 64 --steps 10 --rounds 3",
            gpu="--device cuda --batch 512",
            dry="--batch 2",
            limit=120,
        ),
        "suite": Piece(command="benchmarks.suite --out {out}", limit=180, **DEVICE),
        "sliding": Piece(
            command="benchmarks.language --only sliding",
            limit=300,
            dry="--device cpu --tokens 264 --naive 2 --batch 4",
        ),
        "bench-model-tiny-eager": _network("tiny-eager", 120),
        "growth": Piece(command="benchmarks.growth --out {out}", limit=180, **DEVICE),
        "loop": Piece(command="benchmarks.loop", limit=180, dry="--device cpu"),
        "ways": Piece(
            command=f"benchmarks.ways --only {WAYS} --out {{out}}/ways-kernels.txt",
            limit=480,
            dry=None,
        ),
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


def _checks() -> dict[str, Piece]:
    """The kernels against float64, and the tests of each file that needs a device."""
    parts = {f"check-{part}": f"check {part}/{PARTS}" for part in range(1, PARTS + 1)}
    kernels = {
        name: Piece(command=f"benchmarks.kernels {words}", limit=300, is_timed=False)
        for name, words in {**parts, "check-laws": "laws"}.items()
    }
    tests: dict[str, Any] = {"limit": 300, "needs": ("pytest", "hypothesis"), "is_timed": False}
    files = {
        "test-" + path.stem.removeprefix("test_"): path.relative_to(ROOT)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if MARK in path.read_text() and path.parent != ROOT / "tests/ops"
    }
    return {
        "test-ops": Piece(
            command=f"{PYTEST} -m 'not slow'",
            gpu="tests/ops",
            dry="tests/ops/test_launch.py",
            **tests,
        ),
        **{name: Piece(command=f"{PYTEST} -m gpu {file}", **tests) for name, file in files.items()},
        **kernels,
        "test-ops-slow": Piece(command=f"{PYTEST} -m slow tests/ops", **tests | {"dry": None}),
    }


def _bench(section: str, limit: int) -> Piece:
    needs = ("transformers",) if section == "generate" else ()
    command = f"pidformer bench {section} --out {{out}}"
    return Piece(command=command, limit=limit, needs=needs, **DEVICE)


def _network(name: str, limit: int) -> Piece:
    return Piece(command=f"benchmarks.model {name} --out {{out}}", limit=limit, **DEVICE)


def _path(name: str, limit: int) -> Piece:
    return Piece(command=f"benchmarks.paths {name} --out {{out}}", limit=limit, **DEVICE)


PIECES = _pieces()


def main() -> None:
    options = _options()
    if not options.dry and not torch.cuda.is_available():
        sys.exit("benchmarks gpu needs a CUDA device; --dry tries its pieces on this CPU")
    if wrong := [name for name in options.pieces if name not in PIECES]:
        raise unknown("piece", wrong[0], PIECES)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # and so its pieces
    options.out.mkdir(parents=True, exist_ok=True)
    folder, ended = options.out.resolve(), time.monotonic() + 60 * options.minutes
    over = set() if options.pieces else {name for name, found in _read(folder) if _is_over(found)}
    names = [name for name in options.pieces or PIECES if name not in over]
    while names:
        group = list(takewhile(lambda name: not PIECES[name].is_timed, names)) or names[:1]
        names = names[len(group) :]
        pieces, left = {name: PIECES[name] for name in group}, ended - time.monotonic()
        for name, found in run_pieces(pieces, folder, left, is_dry=options.dry):
            with (folder / "pieces.jsonl").open("a") as file:
                file.write(json.dumps({"piece": name, **found}) + "\n")
            print(f"-- {name}: {_state(found)}", flush=True)
    sys.exit(summary(folder))


def run_pieces(
    pieces: Mapping[str, Piece], folder: Path, left: float, *, is_dry: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run pieces beside each other, show what they print as it comes, and say how each ended."""
    waiting, running, ended = dict(pieces), dict[str, _Running](), time.monotonic() + left
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                name = next(iter(waiting))
                piece, left = waiting.pop(name), ended - time.monotonic()
                if why := piece.why_not(left, is_dry=is_dry):
                    yield name, {"state": "left out", "why": why}
                    continue
                words = piece.words(folder, is_dry=is_dry)
                print(f"\n## {' '.join(words)}\n", flush=True)
                running[name] = _Running(
                    words, folder / f"{name}.txt", min(piece.limit, left), is_dry
                )
            time.sleep(0.2)
            for name, one in list(running.items()):
                found = one.found()
                one.show(f"{name}: " if len(pieces) > 1 else "", is_last=found is not None)
                if found is not None:
                    del running[name]
                    yield name, found
    finally:
        for one in running.values():
            one.stop()


class _Running:
    """A process with all that it begins, what it prints, and its limit."""

    def __init__(self, words: list[str], log: Path, limit: float, is_dry: bool) -> None:
        # Unbuffered: what is stopped has said how far it came.
        environment = {**os.environ, "COLUMNS": "160", "PYTHONUNBUFFERED": "1"}
        if is_dry:
            environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        self.begun, self.limit, self.log = time.monotonic(), limit, log
        with log.open("w") as written:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words],
                stdout=written,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=ROOT,
                start_new_session=True,
            )
        self.seen, self.rest = log.open(errors="replace"), ""

    def show(self, prefix: str, *, is_last: bool) -> None:
        """What it has printed since; with a prefix, whole lines."""
        text, self.rest = self.rest + self.seen.read(), ""
        if prefix and not is_last:
            whole, end, self.rest = text.rpartition("\n")
            text = whole + end
        lines = text.splitlines(keepends=True)
        print("".join(prefix + line for line in lines), end="", flush=True)
        if is_last:
            self.seen.close()

    def found(self) -> dict[str, Any] | None:
        """How it ended, if it has; at its limit it is ended."""
        code, seconds = self.process.poll(), round(time.monotonic() - self.begun, 1)
        if code is None and seconds < self.limit:
            return None
        self.stop()
        if code is None:
            why = f"not done within {self.limit:.0f} s"
            return {"state": "stopped", "why": why, "seconds": seconds}
        if code:
            lines = self.log.read_text(errors="replace").strip().splitlines() or [""]
            return {"state": "failed", "why": f"exit code {code}: {lines[-1]}", "seconds": seconds}
        return {"state": "done", "seconds": seconds}

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _is_over(found: Mapping[str, Any]) -> bool:
    """Whether another run would hardly end another way; what had less than its limit may."""
    if found["state"] == "stopped":
        return found["piece"] in PIECES and found["seconds"] >= PIECES[found["piece"]].limit
    return found["state"] in ("done", "failed")


def summary(folder: Path) -> int:
    """Print how each piece ended last, goals and verdicts; the number of pieces that went wrong."""
    ended = dict(_read(folder))
    print("\n| piece | how it ended |\n|---|---|")
    for name, found in ended.items():
        print(f"| {name} | {_state(found)} |")
    if ended.get("ceilings", {}).get("state") == "done":
        print((folder / "ceilings.txt").read_text())
    goals.show(goals.goals(goals.kept(folder)))
    bench = [ended.get(name, {}) for name in PIECES if name.startswith("bench-")]
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
