"""The numbers behind the sliders."""

import json
import math
import shlex

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pidformer import control
from pidformer.cli import main
from pidformer.errors import InputError
from pidformer.lab.controller import draws, kernel_of, start
from pidformer.lab.knobs import LIMITS, PRESETS, Knobs
from tests.lab.oracle import look


def value_of(limits):
    steps = round((limits.high - limits.low) / limits.step)
    return st.integers(0, steps).map(lambda n: round(limits.low + n * limits.step, 6))


knobs = st.builds(
    Knobs,
    causal=st.booleans(),
    implicit=st.booleans(),
    **{name: value_of(limits) for name, limits in LIMITS.items()},
)


@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_is_attention_written_out(causal):
    given = Knobs(tokens=7, sharpness=1.7, causal=causal, seed=3)
    x, _ = (part.numpy() for part in start(given))
    expected = np.zeros((7, 7))
    for i in range(7):
        seen = range(i + 1) if causal else range(7)
        weights = {j: math.exp(1.7 * sum(x[i] * x[j]) / 2) for j in seen}
        for j, weight in weights.items():
            expected[i, j] = weight / sum(weights.values())
    np.testing.assert_allclose(kernel_of(given), expected, rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(knobs)
def test_the_kernel_of_any_knobs_has_real_eigenvalues_in_the_unit_interval(given):
    values = torch.linalg.eigvals(kernel_of(given))
    assert float(values.imag.abs().max()) < 1e-7
    assert float(values.real.min()) > -1e-7 and float(values.real.max()) < 1 + 1e-9


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(knobs)
def test_the_verdict_says_what_the_closed_form_says(given):
    found = look(given)
    said = found.verdict[0]
    if control.is_stable(given.gains, given.kappa_min):
        assert said.startswith("Stable for")
    else:
        assert said.startswith(("Unstable for", "On the edge", "No control"))
    assert len(found.verdict) == 3 and "nan" not in " ".join(found.verdict)


@settings(max_examples=30, deadline=None)
@given(knobs)
def test_any_knobs_survive_their_address(given):
    assert Knobs.from_query(given.to_query()) == given


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", Knobs()),
        ("?view=controller&p=nonsense&i=0.5", Knobs(i=0.5)),
        ("?p=1e9&depth=inf&tokens=5.0", Knobs(tokens=5)),
        ("?d=nan&beta=0&causal=1", Knobs(causal=True)),
    ],
)
def test_an_address_with_nonsense_keeps_the_rest(query, expected):
    assert Knobs.from_query(query) == expected


def test_a_knob_out_of_range_is_refused():
    with pytest.raises(InputError, match=r"p must be in \[0, 1.5\], got 9"):
        Knobs(p=9)


def test_similarity_and_rank_by_the_definition():
    found = look(Knobs(tokens=5, depth=4))
    for layer, values in enumerate(found.held):
        unit = values / np.linalg.norm(values, axis=1, keepdims=True)
        pairs = [unit[i] @ unit[j] for i in range(5) for j in range(5) if i != j]
        assert found.similarity[layer] == pytest.approx(np.mean(pairs), abs=1e-12)
        sizes = np.linalg.svd(values, compute_uv=False)
        share = sizes / sizes.sum()
        rank = math.exp(-sum(s * math.log(s) for s in share if s > 0))
        assert found.rank[layer] == pytest.approx(rank, rel=1e-6)


@pytest.mark.parametrize(("step", "implicit"), [(0.5, False), (1.0, True), (0.75, True)])
def test_the_command_judges_the_same_discretisation(step, implicit, capsys):
    given = Knobs(p=0.8, i=0.5, d=0.05, beta=0.1, step=step, implicit=implicit)
    with pytest.raises(SystemExit):
        main([*shlex.split(given.command())[1:], "--json"])
    printed = json.loads(capsys.readouterr().out)
    report = control.stability_report(given.gains, given.kappa_min)
    assert printed["worst_radius"] == pytest.approx(report.worst_radius, rel=1e-12)
    assert printed["worst_radius"] != control.stability_report("deit").worst_radius


@pytest.mark.parametrize("kind", ["P", "PI", "PID"])
def test_a_design_of_shorter_steps_is_cut_to_the_sliders(kind):
    made = Knobs(kappa_min=0.0, d=0.4, step=0.5, implicit=True).designed(kind)
    assert made.p == LIMITS["p"].high and control.is_stable(made.gains, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["P", "PD", "PI", "PID"])
@pytest.mark.parametrize("kappa_min", [-0.5, 0.0, 0.5])
def test_a_design_is_stable_and_on_the_sliders(kind, kappa_min):
    made = Knobs(kappa_min=kappa_min, d=0.05).designed(kind)
    assert control.is_stable(made.gains, kappa_min)
    best = control.design_gains(kind, kappa_min, d=0.05 if "D" in kind else None)
    assert abs(made.p - best.p) <= 0.0026 and abs(made.i - best.i) <= 0.0026


def test_the_presets_are_the_papers_gains():
    for name, task in (("DeiT", "deit"), ("Segmenter", "segmenter"), ("LM", "lm")):
        assert Knobs(**PRESETS[name]).gains == control.PIDGains.paper(task)


def test_draws_are_normal_and_differ_by_seed():
    numbers = np.array(draws(0, 20000))
    assert abs(numbers.mean()) < 0.03 and abs(numbers.std() - 1) < 0.03
    assert abs((numbers**4).mean() - 3) < 0.2  # the kurtosis of a normal
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03
    assert len({draws(seed, 1)[0] for seed in range(100)}) == 100


def test_the_python_that_is_handed_out_runs(capsys):
    exec(Knobs(p=0.8).python(), {})
    assert "worst radius" in capsys.readouterr().out
