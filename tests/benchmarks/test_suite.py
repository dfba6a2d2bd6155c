"""A suite as users run it, on a few images on the CPU."""

import pytest
import torch

from benchmarks import suite as benchmark
from pidformer.bench.timing import BenchSetting
from tests.bench.test_sections import check_rows


@pytest.mark.slow
def test_every_attack_of_the_suite_has_a_rate():
    setting = BenchSetting(device=torch.device("cpu"), rounds=1)
    rows = check_rows(list(benchmark.suite(setting, 2)), "suite")
    names = [row.what.removeprefix("suite study, ") for row in rows]
    assert names == ["clean", "fgsm", "pgd", "sld", "noise"]
    assert {row.label for row in rows} == {benchmark.AS_IT_IS}  # nothing is recorded on a CPU
    assert {row.unit for row in rows} == {"images/s"} and rows[0].sizes["images"] == 2
