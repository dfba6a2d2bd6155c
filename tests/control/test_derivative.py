"""The explicit and the implicit derivative: conditions, poles and the recursions themselves."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pidformer.control import (
    PIDGains,
    characteristic_polynomial,
    gain_margin,
    is_stable,
    poles,
    schur_cohn,
    simulate,
    spectral_radius,
    stability_report,
    stable_interval,
    trajectory,
    worst_radius,
)
from pidformer.errors import InputError
from tests.kernels import softmax_kernel, values

FORMS = ("explicit", "implicit")
gain = st.one_of(st.just(0.0), st.floats(1e-3, 3))
positive_p = st.builds(PIDGains, p=st.floats(1e-3, 3), i=gain, d=gain)


def condition(gains, kappa_min, form):
    """The one inequality that docs/control.md states, for p > 0 and kappa in [kappa_min, 1]."""
    signed = 4 * gains.d if form == "explicit" else -4 * gains.d
    return 2 * gains.p + gains.i + signed < 2 * (1 + kappa_min)


def next_value(kappa, v, total, error, previous, gains, form):
    """One layer of one mode as it is written down; `total` includes this layer's error."""
    change = (kappa - 1) * v + gains.p * error + gains.i * total
    if form == "explicit":
        return v + change + gains.d * (error - previous)
    return v + change / (1 + gains.d)


def layer_matrix(kappa, gains, form):
    """The same as a matrix on (v, S_{l-1}, v_{l-1}), reference zero, built column by column."""
    columns = []
    for v, total, before in np.eye(3):
        after = next_value(kappa, v, total - v, -v, -before, gains, form)
        columns.append([after, total - v, v])
    matrix = np.array(columns).T
    if gains.i == 0:  # nothing reads the sum
        matrix = np.delete(np.delete(matrix, 1, axis=0), 1, axis=1)
    return matrix


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@given(gains=positive_p, kappa=st.floats(-1, 1))
@settings(max_examples=300, deadline=None)
def test_the_condition_says_whether_the_spectral_radius_is_below_one(form, gains, kappa):
    radius = np.abs(np.linalg.eigvals(layer_matrix(kappa, gains, form))).max()
    assert float(spectral_radius(kappa, gains, derivative=form)) == pytest.approx(radius, abs=2e-5)
    assume(abs(radius - 1) > 1e-7)
    assert condition(gains, kappa, form) == (radius < 1)
    assert is_stable(gains, kappa, kappa, derivative=form) == (radius < 1)
    assert bool(schur_cohn(kappa, gains, derivative=form)) == (radius < 1)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@given(gains=positive_p, kappa_min=st.floats(-0.99, 1))
@settings(max_examples=200, deadline=None)
def test_over_an_interval_the_condition_is_that_of_its_lower_end(form, gains, kappa_min):
    worst = worst_radius(gains, kappa_min, 101, derivative=form)
    assume(abs(worst - 1) > 1e-7)
    assert condition(gains, kappa_min, form) == (worst < 1)
    assert is_stable(gains, kappa_min, derivative=form) == (worst < 1)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@given(
    gains=positive_p,
    kappa=st.floats(-1, 1),
    reference=st.floats(-1, 1),
    start=st.tuples(*[st.floats(1.1, 2)] * 3),  # away from every limit, which lies in [-1, 1]
)
@settings(max_examples=150, deadline=None)
def test_the_recursion_settles_exactly_where_the_condition_holds(
    form, gains, kappa, reference, start
):
    radius = float(spectral_radius(kappa, gains, derivative=form))
    assume(abs(radius - 1) > 0.02)
    v, total, error = start[0], start[1], start[2]
    change = math.inf
    for _ in range(3000):
        previous, error = error, reference - v
        total += error
        after = next_value(kappa, v, total, error, previous, gains, form)
        change, v = abs(after - v), after
        if abs(v) > 1e12:
            break
    assert condition(gains, kappa, form) == (change < 1e-8)
    if change < 1e-8:
        target = 1 if gains.i else gains.p / (1 + gains.p - kappa)
        assert v == pytest.approx(target * reference, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_condition_for_complex_kappa(form):
    random = np.random.default_rng(0)
    agree = 0
    for p, i, d, r, angle in random.uniform(0, 1, (1000, 5)) * [2.5, 4.0, 1.3, 1.0, 2 * np.pi]:
        gains, kappa = PIDGains(p=p, i=i, d=d), r * np.exp(1j * angle)
        radius = np.abs(np.linalg.eigvals(layer_matrix_complex(kappa, gains, form))).max()
        agree += bool(schur_cohn(kappa, gains, derivative=form)) == (radius < 1)
    assert agree == 1000


def layer_matrix_complex(kappa, gains, form):
    """`layer_matrix` is affine in kappa, so two real values give the complex one."""
    at_0, at_1 = (layer_matrix(real, gains, form) for real in (0.0, 1.0))
    return at_0 + kappa * (at_1 - at_0)


@given(gains=st.builds(PIDGains, p=gain, i=gain), kappa=st.complex_numbers(max_magnitude=1.0))
@settings(max_examples=50, deadline=None)
def test_without_a_derivative_the_two_are_one(gains, kappa):
    explicit, implicit = (characteristic_polynomial(kappa, gains, derivative=f) for f in FORMS)
    torch.testing.assert_close(explicit, implicit)


def test_the_papers_imagenet_gains_are_stable_only_with_the_implicit_derivative():
    gains = PIDGains.paper("deit")
    explicit, implicit = (stability_report(gains, derivative=form) for form in FORMS)
    assert not explicit.stable and explicit.worst_radius == pytest.approx(1.1617, abs=5e-5)
    assert implicit.stable and implicit.worst_radius == pytest.approx(0.9457, abs=5e-5)
    assert 2 * gains.p + gains.i - 4 * gains.d == pytest.approx(1.9)
    assert implicit.stable_interval == pytest.approx((-0.05, 1.8))
    assert implicit.gain_margin == pytest.approx(2 / 1.9)


def euler(kernel, v0, gains, steps, length=1.0):
    """Euler steps of the paper's matrix equation (1 + D) V' = (K - Id) V + P e + I int e."""
    v, total, reference = v0, torch.zeros_like(v0), gains.beta * v0
    for _ in range(steps):
        error = reference - v
        total = total + length * error
        v = v + length * (kernel @ v - v + gains.p * error + gains.i * total) / (1 + gains.d)
    return v


def test_the_implicit_recursion_is_the_euler_step_of_the_papers_equation():
    """In small steps it follows the closed form; in whole steps its modes are the poles."""
    kernel, v0 = softmax_kernel(6, sharpness=2.0), values(6)
    gains = PIDGains(p=0.6, i=0.4, d=0.3, beta=0.4)
    expected = trajectory(kernel, v0, gains, [2.0])[0]
    errors = [(euler(kernel, v0, gains, n, 2.0 / n) - expected).abs().max() for n in (500, 1000)]
    assert errors[1] < 1e-3 and errors[0] / errors[1] == pytest.approx(2, rel=0.05)
    kappas = torch.linalg.eigvals(kernel)
    radius = float(spectral_radius(kappas, gains, derivative="implicit").max())
    reference = gains.beta * v0
    early, late = ((euler(kernel, v0, gains, n) - reference).norm() for n in (40, 80))
    assert float(late / early) ** (1 / 40) == pytest.approx(radius, rel=0.02)


def test_under_uniform_attention_the_imagenet_gains_diverge_or_settle():
    gains, kernel = PIDGains.paper("deit"), torch.full((4, 4), 0.25, dtype=torch.float64)
    v0 = torch.tensor([[1.0], [-1.0], [0.5], [0.2]], dtype=torch.float64)
    assert simulate(kernel, v0, gains, 400)[-1].abs().max() > 1e11
    torch.testing.assert_close(euler(kernel, v0, gains, 400), gains.beta * v0)


def test_the_implicit_derivative_widens_the_region_and_knows_no_largest_d():
    lows = [
        stable_interval(PIDGains(p=0.5, i=0.3, d=d), derivative="implicit")[0]
        for d in (0, 0.1, 0.2, 5)
    ]
    assert lows == sorted(lows, reverse=True) and lows[0] > lows[1]
    assert is_stable(PIDGains(p=0.5, i=0.3, d=5), -1, derivative="implicit")
    assert stable_interval(PIDGains(p=0.5, i=0.3, d=5)) is None
    assert stable_interval(PIDGains(p=0.1, i=4.5), derivative="implicit") is None


@pytest.mark.parametrize("d", [0.0, 0.5, 4.0])
@pytest.mark.parametrize("kappa_min", [0.0, -0.4])
def test_an_implicit_design_gets_faster_with_d_without_end(kappa_min, d):
    gain, share = (1 + kappa_min) / 2 + d, (1 - kappa_min) / (2 * (1 + d))
    p, pi = PIDGains(p=gain, d=d), PIDGains(p=gain, i=gain, d=d)
    assert worst_radius(p, kappa_min, derivative="implicit") == pytest.approx(share)
    assert worst_radius(pi, kappa_min, derivative="implicit") == pytest.approx(share**0.5)


def test_the_implicit_gain_margin_is_the_boundary_or_infinite():
    gains = PIDGains(p=0.8, i=0.5, d=0.2)
    margin = gain_margin(gains, -0.2, derivative="implicit")
    for factor, expected in ((margin - 1e-6, True), (margin + 1e-6, False)):
        assert is_stable(gains.scaled(factor), -0.2, derivative="implicit") is expected
    for strong in (PIDGains(p=0.2, d=0.1), PIDGains(p=0.2, i=0.3, d=0.4)):
        assert math.isinf(gain_margin(strong, derivative="implicit"))
        assert is_stable(strong.scaled(1000), derivative="implicit")


def test_the_implicit_report_over_a_spectrum_finds_its_own_boundary():
    kappas = torch.linalg.eigvals(softmax_kernel(20, sharpness=4.0))
    gains = PIDGains.paper("deit")
    report = stability_report(gains, kappas=kappas, derivative="implicit")
    radii = poles(kappas, gains, derivative="implicit").abs().amax(-1)
    assert report.worst_radius == pytest.approx(float(radii.max()))
    tenth = stability_report(gains.scaled(0.1), kappas=kappas, derivative="implicit")
    assert tenth.stable and tenth.gain_margin == pytest.approx(10 * report.gain_margin)
    for share, expected in ((0.999, True), (1.001, False)):
        scaled = gains.scaled(share * report.gain_margin)
        assert stability_report(scaled, kappas=kappas, derivative="implicit").stable is expected
    held = stability_report(PIDGains(p=0.2, d=0.2), kappas=kappas, derivative="implicit")
    assert held.stable and math.isinf(held.gain_margin)


@pytest.mark.parametrize(
    "ask",
    [
        lambda g, f: characteristic_polynomial(0.0, g, derivative=f),
        lambda g, f: spectral_radius(0.0, g, derivative=f),
        lambda g, f: schur_cohn(0.0, g, derivative=f),
        lambda g, f: stable_interval(g, derivative=f),
        lambda g, f: is_stable(g, derivative=f),
        lambda g, f: gain_margin(g, derivative=f),
        lambda g, f: worst_radius(g, derivative=f),
        lambda g, f: stability_report(g, derivative=f),
    ],
)
def test_an_unknown_derivative_gets_one_line(ask):
    with pytest.raises(InputError, match=r"^unknown derivative 'implict'; did you mean 'implicit'"):
        ask(PIDGains(p=0.5, d=0.1), "implict")
