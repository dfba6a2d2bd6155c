"""Attacks with tiny sizes on the CPU."""

import pytest
import torch

from benchmarks import attacks
from pidformer.bench import model
from pidformer.robustness import PGD
from tests.bench.test_sections import CPU, check_rows

pytestmark = pytest.mark.slow


def test_attack_rows():
    size = attacks.AttackSize(2, image=16, patch=8, steps=2)
    rows = check_rows(list(attacks.attack(CPU, size)), "attack")
    assert all(row.unit == "images/s" for row in rows)
    assert [row.label for row in rows[:2]] == [attacks.PLAIN, attacks.OURS]
    assert rows[0].note.endswith("of 2 right")


def test_the_minimal_loop_is_our_pgd():
    kind = model.ModelSize("tiny", 2, image=16, patch=8)
    network = model.deit(kind, CPU, is_timm=True).eval()
    images = model.pixels(2, 16, CPU)
    labels = attacks.predictions(network, images)
    size = attacks.AttackSize(2, steps=3)
    minimal = attacks.minimal(network, size.step, 3, attacks.EPS)(images, labels)
    threat = PGD(eps=attacks.EPS, step_size=size.step, steps=3, random_start=False)
    torch.testing.assert_close(minimal, threat(network, images, labels))
