"""How cost grows, with tiny sizes."""

import pytest
import torch

from benchmarks import growth
from benchmarks._growth_figure import growth_figure
from pidformer.bench import model
from pidformer.bench.timing import BenchSetting
from pidformer.control.pid import PIDState
from tests.bench.test_sections import CPU, TINY, check_rows


@pytest.fixture(autouse=True)
def _one_call_per_sample(monkeypatch):
    monkeypatch.setattr("pidformer.bench.timing.SHORTEST", 0.0)


@pytest.mark.slow
def test_growth_rows_and_figure(tmp_path):
    size = growth.SMALL._replace(shape=TINY, tokens=(4, 8), depths=(2, 4), batches=(1,), image=16)
    found = list(growth.growth(CPU, size))
    rows = check_rows(found, "growth")
    assert [r.sizes["tokens"] for r in found[0][::2]] == [4, 8]
    states = [r for r in rows if r.what == growth.STATE]
    # v_0, the sum and v_{l-1}: three float32 tensors of 1 image, 5 tokens, width 64, at any depth
    assert [r.value for r in states] == [3 * 5 * 64 * 4] * 2
    assert [r.ratio for r in states] == [1.0, 1.0]
    assert growth_figure(rows, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    assert not growth_figure([], tmp_path / "none.png")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_growth_is_of_kernels_and_memory_grows_with_what_is_kept():
    setting = BenchSetting(device=torch.device("cuda"), rounds=2)
    size = growth.SMALL._replace(tokens=(64, 256), depths=(2, 4), batches=(1,))
    rows = check_rows(list(growth.growth(setting, size)), "growth")
    assert {row.mode for row in rows if row.what != growth.STATE} == {"recorded"}
    for label in (model.TWIN, model.PID):
        shallow, deep = (r for r in rows if r.what == growth.OVER_DEPTH and r.label == label)
        assert 1.2 < deep.peak_bytes / shallow.peak_bytes < 2.2  # the head's part stays


def test_a_tensor_that_is_twice_in_a_state_counts_once():
    value = torch.zeros(2, 3)
    assert growth.state_bytes(PIDState(value, torch.zeros(2, 3), value)) == 2 * 6 * 4
