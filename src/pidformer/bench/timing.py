"""Contenders take turns in one process: medians, quartiles, and ratios within each round."""

import gc
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import metadata
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from pidformer.errors import InputError, is_out_of_memory
from pidformer.results import Record

GAINS = "0.4,0.1,0.05"
"""The controller of every benchmark: all three terms act."""


RIVALS = ("torchattacks", "foolbox", "cleverhans")
"""Libraries that attacks are timed against, where they are installed."""


@dataclass(frozen=True, kw_only=True)
class BenchSetting:
    """Device, rounds and seed; a GPU gets the sizes of models in use, a CPU small ones."""

    device: torch.device
    rounds: int = 7
    seed: int = 0
    steady: float | None = None
    """Rounds end early, after `FEWEST`, once the quartiles of every ratio lie this close."""
    say: Callable[[str], None] = lambda _: None
    """Called with what is about to be measured."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError(f"rounds must be at least 1, got {self.rounds}")

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """What operators and models compute in."""
        return torch.bfloat16 if self.is_gpu else torch.float32

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.bfloat16) if self.is_gpu else nullcontext()


def header(setting: BenchSetting) -> dict[str, Any]:
    """Device and versions that the numbers belong to."""
    versions = {"python": platform.python_version()}
    for name in ("pidformer", "torch", "timm", "triton", "transformers", *RIVALS):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    versions["torch"] = torch.__version__  # with what it was built for
    return {
        "device": torch.cuda.get_device_name(setting.device) if setting.is_gpu else "CPU",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "rounds": setting.rounds,
        "seed": setting.seed,
        "dtype": name_of(setting.dtype),
        "versions": versions,
    }


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


SHORTEST, SHORTEST_ON_GPU = 0.02, 0.2
"""Seconds that a sample lasts at least: shorter calls are repeated, so that launches overlap."""
MOST_CALLS = 100
WARM_UPS = 2
FEWEST = 3
NO_MEMORY = "out of memory"
Unit = Literal["s", "images/s", "tokens/s", "bytes"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One contender: a label, and what makes its callable when the group is measured."""

    label: str
    make: Callable[[], Callable[[], object]]
    is_optional: bool = False
    """From another library: an error leaves the row empty, with the reason in its note."""
    wrap: Callable[[Callable[[], object]], Callable[[], object]] | None = None
    """What makes of the warmed-up call the one that is timed."""


@dataclass(frozen=True, kw_only=True)
class _Table:
    """What the rows of one table share."""

    section: str
    what: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    dtype: str = "float32"
    mode: Literal["eager", "compiled", "graphs", "recorded", ""] = "eager"
    unit: Unit = "s"


@dataclass(frozen=True, kw_only=True)
class Workload(_Table):
    """What is measured for a table."""

    amount: float = 1.0
    """What a call does: layers in a row (a time is for one), or images, or tokens (for a rate)."""
    clock: Callable[[], float] = time.perf_counter
    """Or `time.process_time`: the time of a core, whatever else runs on it."""

    def value(self, seconds: float) -> float:
        return seconds / self.amount if self.unit == "s" else self.amount / seconds

    def row(
        self, label: str, values: Sequence[float], ratios: Sequence[float], **more: Any
    ) -> "Timing":
        about = {k: v for k, v in vars(self).items() if k not in ("amount", "clock")}
        for prefix, numbers in (("", values), ("ratio_", ratios)):
            if numbers:
                names = (prefix.rstrip("_") or "value", f"{prefix}low", f"{prefix}high")
                about |= dict(zip(names, spread(numbers), strict=True))
        return Timing(**about, label=label, rounds=len(values), **more)


@dataclass(frozen=True, kw_only=True)
class Timing(_Table):
    """One contender in one group: median and quartiles over the rounds.

    `ratio` is the median of (this / baseline) within each round, so that a clock that drifts moves
    both. `peak_bytes` is what a call allocates on the GPU at its peak, beyond weights and inputs.
    """

    label: str
    rounds: int = 0
    value: float | None = None
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    peak_bytes: int | None = None
    peak_ratio: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_record(self, settings: Mapping[str, Any]) -> Record:
        fields = self.to_dict()
        names = ("value", "low", "high", "ratio", "ratio_low", "ratio_high", "peak_bytes")
        numbers = {name: fields.pop(name) for name in (*names, "peak_ratio")}
        found = {name: value for name, value in numbers.items() if value is not None}
        return Record(kind="bench", metrics=found, settings={**settings, **fields})


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and the quartiles."""
    median, low, high = np.quantile(values, (0.5, 0.25, 0.75)).tolist()
    return median, low, high


class _Ready(NamedTuple):
    run: Callable[[], object]
    calls: int
    peak: int | None


def measure(
    group: Workload, cases: Sequence[Case], setting: BenchSetting, *, baseline: str | None = None
) -> list[Timing]:
    """One row per case; ratios are to the case labelled `baseline`, the first one by default."""
    baseline = cases[0].label if baseline is None else baseline
    setting.say(group.what)
    ready: dict[str, _Ready] = {}
    notes: dict[str, str] = {}
    for case in cases:
        found = _prepare(case, setting)
        if isinstance(found, str):
            notes[case.label] = found
        else:
            ready[case.label] = found
    values: dict[str, list[float]] = {label: [] for label in ready}
    labels = list(ready)
    for turn in range(setting.rounds):
        for place in range(len(labels)):  # in an order that moves on from round to round
            label = labels[(turn + place) % len(labels)]
            run, calls, _ = ready[label]
            values[label].append(group.value(seconds(run, calls, setting.device, group.clock)))
        if is_steady(values, baseline, setting.steady):
            break
    peaks = {label: found.peak for label, found in ready.items() if found.peak is not None}
    ready.clear()
    free_memory(setting.device)
    rows = []
    for case in cases:
        own, peak, base = values.get(case.label, []), peaks.get(case.label), peaks.get(baseline)
        paired = [a / b for a, b in zip(own, values.get(baseline, []), strict=False)]
        more = {"peak_ratio": peak / base if peak is not None and base else None}
        note = notes.get(case.label, "")
        rows.append(group.row(case.label, own, paired, peak_bytes=peak, note=note, **more))
    return rows


def is_steady(values: Mapping[str, Sequence[float]], baseline: str, limit: float | None) -> bool:
    """Whether more rounds would hardly move a ratio to the baseline."""
    base = values.get(baseline, [])
    if limit is None or len(base) < FEWEST:
        return False
    for own in values.values():
        middle, low, high = spread([a / b for a, b in zip(own, base, strict=True)])
        if high - low > limit * middle:
            return False
    return True


def rows_of(group: Workload, values: Mapping[str, Sequence[float]]) -> list[Timing]:
    """Rows of values measured elsewhere, in turn; ratios are of medians, to the first's."""
    base = statistics.median(next(iter(values.values())))
    return [
        group.row(label, found, [value / base for value in found])
        for label, found in values.items()
    ]


def _prepare(case: Case, setting: BenchSetting) -> _Ready | str:
    """The warmed-up case, or why there is none."""
    try:
        run = case.make()
        run()  # compiles
        recording = peak_bytes(run, setting.device, calls=WARM_UPS - 1)
        peak = peak_bytes(run, setting.device)
        if recording is not None and peak is not None:
            peak = max(peak, recording)
        if case.wrap is not None:
            run = case.wrap(run)
        lasting = seconds(run, 1, setting.device)
    except Exception as error:
        if is_out_of_memory(error):
            reason = NO_MEMORY
        elif isinstance(error, ImportError):
            reason = f"left out: {error.name} is not installed"
        elif case.is_optional:
            line = str(error).strip().partition("\n")[0]
            reason = f"left out: {type(error).__name__}: {line[:120]}"
        else:
            raise
    else:
        shortest = SHORTEST_ON_GPU if setting.is_gpu else SHORTEST
        calls = min(MOST_CALLS, max(1, math.ceil(shortest / max(lasting, 1e-9))))
        return _Ready(run, calls, peak)
    free_memory(setting.device)  # outside of the handler, whose traceback holds tensors
    return reason


def seconds(
    run: Callable[[], object],
    calls: int,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds per call, by the clock, from an idle device to an idle device."""
    wait(device)
    begun = clock()
    for _ in range(calls):
        run()
    wait(device)
    return (clock() - begun) / calls


def wait(device: torch.device) -> None:
    """Until the device has done its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def free_memory(device: torch.device) -> None:
    """Give back the memory of a GPU that nothing holds any more."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def peak_bytes(run: Callable[[], object], device: torch.device, calls: int = 3) -> int | None:
    """What a call allocates at its peak, beyond what was there before; None without a GPU.

    The most of a few calls: what the call before has not given back yet hides as much. A CUDA graph
    allocates when it is recorded, at the second call of a compiled model, and no more after.
    """
    if device.type != "cuda":
        return None
    peaks = []
    for _ in range(calls):
        gc.collect()
        wait(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        wait(device)
        peaks.append(torch.cuda.max_memory_allocated(device) - before)
    return max(peaks)


def recorded(run: Callable[[], object]) -> Callable[[], object]:
    """What replays the kernels of a call."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # once where it is recorded, so that nothing is set up there
        run()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph, stream=side):
        run()
    return partial(_replay, graph, run)


def _replay(graph: torch.cuda.CUDAGraph, run: Callable[[], object]) -> None:
    """`run` is kept for its tensors: a graph holds their addresses alone."""
    graph.replay()
