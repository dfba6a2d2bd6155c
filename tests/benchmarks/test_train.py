"""The training loop with tiny sizes on the CPU."""

import pytest

from benchmarks import train
from benchmarks._measure import rows_of
from pidformer import results
from pidformer.bench import model
from pidformer.bench.timing import Workload
from tests.bench.test_sections import CPU, check_rows

pytestmark = pytest.mark.slow


def test_train_rows_are_the_trainers_own(monkeypatch):
    seen = {}
    real = train.run_training

    def spy(recipe, run, **options):
        real(recipe, run, **options)
        logged = [r for r in results.read(run) if r.kind == "train"]
        seen[run.name] = [r.metrics["images_per_second"] for r in logged]

    monkeypatch.setattr(train, "run_training", spy)
    size = train.SMALL._replace(batch=4, windows=4, skipped=1, depth=2, image=16, jpegs=2)
    loop, reading = list(train.train(CPU, size))
    assert [row.label for row in loop] == [model.TWIN, model.PID] == list(seen)
    for row in loop:
        assert row.rounds == 3 and row.value == pytest.approx(sorted(seen[row.label][1:])[1])
    assert loop[0].ratio == pytest.approx(1.0)
    check_rows([reading], "train")


def test_values_measured_elsewhere_become_rows():
    base, other = rows_of(
        Workload(section="test", what="work"), {"a": [2.0, 4.0, 3.0], "b": [6.0, 6.0]}
    )
    assert (base.value, base.ratio) == (3.0, 1.0)
    assert (other.value, other.ratio, other.rounds) == (6.0, 2.0, 2)
