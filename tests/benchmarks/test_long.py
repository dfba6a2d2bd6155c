"""Attention and control as one kernel, over long sequences: tiny sizes on the CPU."""

import pytest
import torch

from benchmarks import long as benchmark
from benchmarks.long import FLEX, FLEX_PID, LARGE
from pidformer.bench.operator import ATTENTION, BOTH, FORWARD, PID, OperatorSize
from pidformer.bench.timing import BenchSetting

CPU = BenchSetting(device=torch.device("cpu"), rounds=1)
TINY = OperatorSize(1, 2, 16, 16, 3)
LABELS = [ATTENTION, PID, FLEX, FLEX_PID]


@pytest.fixture(autouse=True)
def _one_call_a_sample(monkeypatch):
    monkeypatch.setattr("pidformer.bench.timing.SHORTEST", 0.0)


@pytest.fixture
def uncompiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


def test_as_many_tokens_in_a_batch_from_1024_to_16384():
    assert sorted(size.tokens for size in LARGE) == [1024, 2048, 4096, 8192, 16384]
    assert LARGE[0].tokens == 1024  # where float64 fits into memory
    assert {size.batch * size.tokens for size in LARGE} == {16384}


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_all_take_turns_and_a_cpu_leaves_out_what_pytorch_does(uncompiled):
    forward, both = benchmark.long(CPU, [TINY])
    found = [row.what.removesuffix(", all controlled") for row in forward + both]
    assert found == [FORWARD] * 4 + [BOTH] * 4
    assert [row.label for row in forward] == [row.label for row in both] == LABELS
    assert all(row.value > 0 and row.section == "long" and not row.note for row in forward)
    assert [row.value is not None for row in both] == [True, True, False, False]
    assert all("backward on CPU" in row.note for row in both[2:])


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("label", [PID, FLEX_PID])
def test_what_is_off_float64_has_no_time(label, uncompiled, monkeypatch):
    right = benchmark.ATTENTIONS[label]

    def off(*given):
        out, state = right(*given)
        return 1.001 * out, state

    monkeypatch.setitem(benchmark.ATTENTIONS, label, off)
    if label == PID:
        with pytest.raises(ArithmeticError, match="off float64"):
            list(benchmark.long(CPU, [TINY]))
        return
    rows = {row.label: row for row in next(benchmark.long(CPU, [TINY]))}
    assert rows[label].value is None and "off float64" in rows[label].note
    assert all(row.value for row in rows.values() if row.label != label)


@pytest.mark.slow
def test_a_row_names_the_kernels_that_were_compiled_for_a_layer():
    forward, _ = benchmark.long(CPU, [TINY])
    notes = {row.label: row.note.split(", ") for row in forward}
    assert notes[ATTENTION] == notes[PID] == [""]
    assert any("flex_attention" in name for name in notes[FLEX])
    # On a CPU Inductor gives the control a pass of its own, and one graph serves all layers.
    assert len(notes[FLEX_PID]) == len(notes[FLEX]) + 1 == len(set(notes[FLEX_PID]))
