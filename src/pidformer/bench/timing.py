"""Contenders that take turns in one process: medians, spread, and ratios round by round."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

import torch

from pidformer.bench.setting import BenchSetting
from pidformer.errors import is_out_of_memory
from pidformer.results import Record

SHORTEST, SHORTEST_ON_GPU = 0.02, 0.2
"""Seconds that a sample lasts at least: shorter calls are repeated, so that launches overlap."""
MOST_CALLS = 100
WARM_UPS = 2
NO_MEMORY = "out of memory"
Unit = Literal["s", "images/s", "tokens/s", "bytes"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One contender: a label, and what makes the callable that is timed.

    `make` runs only when its group is measured, so that what does not fit into memory costs no
    more than its own row.
    """

    label: str
    make: Callable[[], Callable[[], object]]
    is_optional: bool = False
    """From another library: an error leaves the row empty, with the reason in its note."""
    is_recorded: bool = False
    """On a GPU, timed as a CUDA graph of the call: the host's launches do not count."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What the rows of one table share."""

    section: str
    what: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    dtype: str = "float32"
    mode: Literal["eager", "compiled", "graphs", "recorded", ""] = "eager"
    unit: Unit = "s"
    amount: float = 1.0
    """What a call does: layers in a row (a time is for one), or images, or tokens (for a rate)."""

    def value(self, seconds: float) -> float:
        return seconds / self.amount if self.unit == "s" else self.amount / seconds


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One contender in one group: median and quartiles over the rounds.

    `ratio` is the median of (this / baseline) within each round, so that a clock that drifts moves
    both. `peak_bytes` is what a call allocates on the GPU at its peak, beyond weights and inputs.
    """

    section: str
    what: str
    label: str
    sizes: Mapping[str, int]
    dtype: str
    mode: str
    unit: Unit
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
        """As a line of results.jsonl."""
        fields = self.to_dict()
        names = ("value", "low", "high", "ratio", "ratio_low", "ratio_high", "peak_bytes")
        numbers = {name: fields.pop(name) for name in (*names, "peak_ratio")}
        found = {name: value for name, value in numbers.items() if value is not None}
        return Record(kind="bench", metrics=found, settings={**settings, **fields})


class Quartiles(NamedTuple):
    """Quartiles of a few numbers."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Quartiles:
    """Median and quartiles; of one number three times that number."""
    if len(values) == 1:
        return Quartiles(values[0], values[0], values[0])
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Quartiles(statistics.median(values), low, high)


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
            values[label].append(group.value(seconds(run, calls, setting.device)))
    peaks = {label: found.peak for label, found in ready.items() if found.peak is not None}
    ready.clear()
    free_memory(setting.device)
    return [
        _row(group, case.label, values, peaks, baseline, notes.get(case.label, ""))
        for case in cases
    ]


def rows_of(
    group: Workload, values: Mapping[str, Sequence[float]], baseline: str | None = None
) -> list[Timing]:
    """Rows of values that were measured elsewhere, one after the other: ratios are of medians."""
    first = next(iter(values)) if baseline is None else baseline
    base = statistics.median(values[first])
    paired = {label: [value / base for value in found] for label, found in values.items()}
    return [
        _filled(group, label, spread(list(found)), spread(paired[label]), len(found))
        for label, found in values.items()
    ]


def _prepare(case: Case, setting: BenchSetting) -> _Ready | str:
    """The warmed-up case, or why there is none."""
    try:
        run = case.make()
        for _ in range(WARM_UPS if setting.is_gpu else 1):
            run()
        peak = peak_bytes(run, setting.device)
        if case.is_recorded and setting.is_gpu:
            run = recorded(run)
        lasting = seconds(run, 1, setting.device)
    except Exception as error:
        if is_out_of_memory(error):
            reason = NO_MEMORY
        elif isinstance(error, ImportError):
            reason = f"left out: {error.name} is not installed"
        elif case.is_optional:
            reason = f"left out: {type(error).__name__}"
        else:
            raise
    else:
        shortest = SHORTEST_ON_GPU if setting.is_gpu else SHORTEST
        calls = min(MOST_CALLS, max(1, math.ceil(shortest / max(lasting, 1e-9))))
        return _Ready(run, calls, peak)
    free_memory(setting.device)  # outside of the handler, whose traceback holds tensors
    return reason


def _row(
    group: Workload,
    label: str,
    values: Mapping[str, list[float]],
    peaks: Mapping[str, int],
    baseline: str,
    note: str,
) -> Timing:
    if label not in values:
        return _filled(group, label, None, None, 0, note=note)
    paired = None
    if baseline in values:
        pairs = zip(values[label], values[baseline], strict=True)
        paired = spread([one / other for one, other in pairs])
    peak, base = peaks.get(label), peaks.get(baseline)
    return _filled(
        group,
        label,
        spread(values[label]),
        paired,
        len(values[label]),
        peak_bytes=peak,
        peak_ratio=peak / base if peak is not None and base else None,
        note=note,
    )


def _filled(
    group: Workload,
    label: str,
    found: Quartiles | None,
    ratio: Quartiles | None,
    rounds: int,
    **more: Any,
) -> Timing:
    """A row of the group's table."""
    about = {k: v for k, v in vars(group).items() if k != "amount"} | {"label": label}
    for prefix, values in (("", found), ("ratio_", ratio)):
        if values is not None:
            middle = "ratio" if prefix else "value"
            about |= {middle: values[0], f"{prefix}low": values[1], f"{prefix}high": values[2]}
    return Timing(**about, rounds=rounds, **more)


def seconds(run: Callable[[], object], calls: int, device: torch.device) -> float:
    """Seconds per call, by the clock, from an idle device to an idle device."""
    wait(device)
    begun = time.perf_counter()
    for _ in range(calls):
        run()
    wait(device)
    return (time.perf_counter() - begun) / calls


def wait(device: torch.device) -> None:
    """Until the device has done its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def free_memory(device: torch.device) -> None:
    """Give back the memory of a GPU that nothing holds any more."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def recorded(run: Callable[[], object]) -> Callable[[], object]:
    """What replays the kernels of a call."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # once where it is recorded, so that nothing is set up there
        run()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph, stream=side):
        run()
    return _Replay(graph, run)


@dataclass(frozen=True)
class _Replay:
    """The kernels of a recorded call, with what they read and write."""

    graph: torch.cuda.CUDAGraph
    run: Callable[[], object]
    """Kept for its tensors: a graph holds their addresses alone."""

    def __call__(self) -> None:
        self.graph.replay()


def peak_bytes(run: Callable[[], object], device: torch.device) -> int | None:
    """What a call allocates at its peak, beyond what was there before; None without a GPU.

    The most of a few calls: what the call before has not given back yet hides as much.
    """
    return max(_peak(run, device) for _ in range(3)) if device.type == "cuda" else None


def _peak(run: Callable[[], object], device: torch.device) -> int:
    gc.collect()
    wait(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    wait(device)
    return torch.cuda.max_memory_allocated(device) - before
