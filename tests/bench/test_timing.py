"""Rows, ratios and what happens when something does not fit."""

import itertools
import math
import statistics

import numpy as np
import pytest
import torch

from pidformer.bench import timing
from pidformer.bench.timing import BenchSetting, Case, Workload, header, measure, rows_of, spread
from pidformer.errors import InputError
from pidformer.results import Record

CPU = BenchSetting(device=torch.device("cpu"), rounds=3)
GROUP = Workload(section="test", what="work", sizes={"n": 3})


def case(label, run=lambda: sum(range(1000)), **options):
    return Case(label=label, make=lambda: run, **options)


def fail(error):
    def run():
        raise error

    return run


def test_a_case_against_itself_has_ratio_one():
    one, same = measure(GROUP, [case("one"), case("two")], CPU)
    assert one.ratio == one.ratio_low == one.ratio_high == 1.0
    assert same.value > 0 and same.low <= same.value <= same.high and same.rounds == 3
    assert (same.section, same.what, same.label, same.sizes) == ("test", "work", "two", {"n": 3})


@pytest.mark.parametrize(
    ("slow", "rounds"), [([2.0] * 9, 3), ([2.0, 2.6, 2.0, 2.0, 2.0, 2.0, 2.0], 5)]
)
def test_rounds_end_when_they_agree(monkeypatch, slow, rounds):
    times = {"fast": itertools.repeat(1.0), "slow": iter([slow[0], *slow])}  # once to prepare
    monkeypatch.setattr(timing, "seconds", lambda run, *_: next(times[run]))

    class Named(str):
        def __call__(self):
            pass

    setting = BenchSetting(device=torch.device("cpu"), rounds=7, steady=0.01)
    found = measure(GROUP, [case(name, Named(name)) for name in times], setting)
    assert [row.rounds for row in found] == [rounds, rounds]


def test_times_ratios_and_rates_follow_the_clock(monkeypatch):
    # A clock on which "fast" takes 1, 1, 1 and "slow" 2, 4, 3 seconds, whatever the order.
    spent = {"fast": itertools.repeat(1.0), "slow": itertools.cycle([2.0, 2.0, 4.0, 3.0])}
    times = {label: iter(found) for label, found in spent.items()}
    monkeypatch.setattr(timing, "seconds", lambda run, *_: next(times[run.label]))

    class Work:
        def __init__(self, label):
            self.label = label

        def __call__(self):
            pass

    cases = [case(label, Work(label)) for label in spent]
    group = Workload(section="test", what="work", amount=10)
    fast, slow = measure(group, cases, CPU)
    assert (fast.value, slow.value) == (0.1, pytest.approx(0.3))  # of one of ten
    assert (slow.ratio, slow.ratio_low, slow.ratio_high) == pytest.approx((3, 2.5, 3.5))
    times |= {label: iter(found) for label, found in spent.items()}
    rate = Workload(section="test", what="work", amount=10, unit="images/s")
    times["slow"] = itertools.cycle([2.0, 2.0, 4.0, 3.0])
    _, slow = measure(rate, cases, CPU, baseline="fast")
    assert slow.value == pytest.approx(10 / 3) and slow.ratio == pytest.approx(1 / 3)


def test_quartiles_are_numpys():
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    expected = np.quantile(values, [0.5, 0.25, 0.75])
    assert spread(values) == pytest.approx(tuple(expected))
    assert spread([2.0]) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory"),
    ],
)
def test_a_row_without_memory_says_so_and_the_rest_goes_on(error):
    cases = [case("base"), case("large", fail(error)), case("other")]
    base, large, other = measure(GROUP, cases, CPU)
    assert large.note == timing.NO_MEMORY and large.value is None and large.ratio is None
    assert base.value and other.ratio


def test_without_a_baseline_there_are_times_and_no_ratios():
    base, other = measure(GROUP, [case("base", fail(MemoryError())), case("other")], CPU)
    assert base.value is None and other.value > 0 and other.ratio is None


def test_making_a_case_may_run_out_of_memory_too():
    def make():
        raise torch.OutOfMemoryError

    (row,) = measure(GROUP, [Case(label="large", make=make)], CPU)
    assert row.note == timing.NO_MEMORY


def test_a_foreign_library_may_fail_and_ours_may_not():
    broken = fail(TypeError("no such thing"))
    _, row = measure(GROUP, [case("base"), case("theirs", broken, is_optional=True)], CPU)
    assert row.note == "left out: TypeError: no such thing"
    with pytest.raises(TypeError):
        measure(GROUP, [case("ours", broken)], CPU)


def test_a_package_that_is_missing_is_named():
    absent = fail(ModuleNotFoundError("No module named 'transformers'", name="transformers"))
    (row,) = measure(GROUP, [case("ours", absent)], CPU)
    assert row.note == "left out: transformers is not installed"


def test_contenders_change_their_order_from_round_to_round():
    order = []
    cases = [case(label, lambda label=label: order.append(label)) for label in "abc"]
    original = timing.SHORTEST
    timing.SHORTEST = 0.0  # one call a sample
    try:
        measure(GROUP, cases, CPU)
    finally:
        timing.SHORTEST = original
    assert "".join(order[-9:]) == "abcbcacab"


def test_values_measured_elsewhere_become_rows():
    base, other = rows_of(GROUP, {"a": [2.0, 4.0, 3.0], "b": [6.0, 6.0]})
    assert (base.value, base.ratio) == (3.0, 1.0)
    assert (other.value, other.ratio, other.rounds) == (6.0, 2.0, 2)


def test_a_row_survives_a_record():
    row = measure(GROUP, [case("base")], CPU)[0]
    record = Record.from_json(row.to_record({"seed": 0}).to_json())
    assert record.kind == "bench" and record.metrics["value"] == row.value
    assert record.settings["label"] == "base" and record.settings["sizes"] == {"n": 3}
    assert all(math.isfinite(value) for value in record.metrics.values())
    assert "peak_bytes" not in record.metrics  # not measured on a CPU


def test_the_median_is_of_the_rounds():
    ticks = iter(range(1000))
    (row,) = measure(GROUP, [case("work", lambda: next(ticks))], CPU)
    assert row.rounds == 3 and row.value == pytest.approx(
        statistics.median([row.low, row.value, row.high])
    )


def test_rounds_must_be_some():
    with pytest.raises(InputError, match="rounds must be at least 1, got 0"):
        BenchSetting(device=torch.device("cpu"), rounds=0)


def test_the_header_names_device_and_versions():
    found = header(CPU)
    assert found["device"] == "CPU" and found["dtype"] == "float32"
    assert found["versions"]["torch"] == torch.__version__ and "timm" in found["versions"]
