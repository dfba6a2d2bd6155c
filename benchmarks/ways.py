"""Ways to compile a training step that compute the same, beside each other.

    python -m benchmarks.ways [--only now,descent] [--depth 4] [--at-once 5] [--limit 120]
        [--out FILE]

DeiT-tiny at 64 pixels (`benchmarks.step`), for PID gains and some also for none. Its blocks are
alike, so four compare as twelve do, and compile sooner. Some compile at once, each in a process of
its own with empty caches, then are timed one by one; one that fails or does not compile within
`--limit` seconds says so, and the others go on. A line for each is printed as it comes, with its
seconds to compile beside the others; its kernels go to FILE. (Twelve blocks, twelve at once, on 16
cores of an H200's machine: 68 s for softmax, and over 90 s for everything else.)
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

DESCENT = ("coordinate_descent_tuning=true",)
GEMM = ("max_autotune_gemm=true", "max_autotune_gemm_backends=ATEN,TRITON")
MIXED = ("triton.mix_order_reduction=true", "triton.mix_order_reduction_autotune_split_size=true")
WAYS: dict[str, tuple[str, ...]] = {
    "now": (),
    "descent": DESCENT,  # tiles by measuring neighbours, one kernel at a time
    "gemm": GEMM,  # products in Triton where faster: bias and GELU in their epilogue
    "gemm+descent": (*GEMM, *DESCENT),
    "gemm+tma": (*GEMM, "triton.enable_persistent_tma_matmul=true"),
    "everything": ("max_autotune=true", *GEMM, *DESCENT),
    "mixed": MIXED,  # a norm's sums over tokens and features in one pass, split by measuring
    "mixed+descent": (*MIXED, *DESCENT),
    "combo": ("combo_kernels=true",),  # small kernels beside each other in one launch
    "cooperative": ("triton.cooperative_reductions=true",),  # sums over tokens in one launch
}
WAYS |= {"gelu": (), "gelu+descent": DESCENT}
OURS = {"gelu": "triton", "gelu+descent": "triton"}  # bias and GELU on our kernels
FOR_NONE = ("now", "descent", "gelu")
PID = "0.4,0.1,0.05,1"
Case = tuple[str, str]


def main() -> None:
    options = _options()
    names = options.only.split(",") if options.only else list(WAYS)
    cases = [(name, PID) for name in names] + [(n, "none") for n in names if n in FOR_NONE]
    rounds = [cases[i : i + options.at_once] for i in range(0, len(cases), options.at_once)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.at_once) as pool:
        for cases in rounds:
            begun = {pool.submit(_run, case, Path(folder), options): case for case in cases}
            for done in as_completed(begun):
                _say(begun[done], *done.result(), options)


def _say(case: Case, code: int, output: str, options: argparse.Namespace) -> None:
    label = f"{case[0]}, gains {case[1]}"
    print(f"{label}: {_in_short(code, output, options.limit)}", flush=True)
    if options.out is not None:
        with options.out.open("a") as file:
            file.write(f"# {label}\n\n{output}\n")


def _run(case: Case, folder: Path, options: argparse.Namespace) -> tuple[int, str]:
    """Exit code and output of one case."""
    name, gains = case
    command = [
        sys.executable, "-m", "benchmarks.step", "--image", "64", "--mode", "reduce-overhead",
        "--kernels", OURS.get(name, "auto"), "--rows", "25", "--gains", gains,
        "--beside", str(folder), "--limit", str(options.limit), "--depth", str(options.depth),
    ]  # fmt: skip
    for option in WAYS[name]:
        command += ["--option", option]
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / f"{name}-{gains}" / "inductor"),
        "TRITON_CACHE_DIR": str(folder / f"{name}-{gains}" / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "4",
        "OMP_NUM_THREADS": "1",
    }
    ended = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | caches,
    )
    return ended.returncode, ended.stdout


def _in_short(code: int, output: str, limit: int) -> str:
    if code == -signal.SIGALRM:
        return f"not compiled within {limit} s"
    lines = output.strip().splitlines()
    if code != 0:
        return f"failed ({code}): {' / '.join(lines[-3:])[:400]}"
    return "; ".join(line for line in lines if line.startswith("step ") or "left out" in line)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"some of {', '.join(WAYS)}")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=5)
    parser.add_argument("--limit", type=int, default=120, metavar="SECONDS")
    parser.add_argument("--out", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
