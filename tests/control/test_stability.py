import json
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pidformer.control import (
    PIDGains,
    characteristic_polynomial,
    continuous_poles,
    gain_margin,
    is_stable,
    poles,
    schur_cohn,
    settling_depth,
    simulate,
    spectral_radius,
    stability_report,
    stable_interval,
)
from pidformer.errors import InputError
from tests.kernels import causal_kernel, softmax_kernel

gain = st.one_of(st.just(0.0), st.floats(1e-3, 3))
any_gains = st.builds(PIDGains, p=gain, i=gain, d=gain)


@pytest.mark.parametrize(
    ("task", "stable", "radius", "interval"),
    [
        ("deit", False, 1.1617, (0.15, 1.824)),
        ("segmenter", True, 0.8126, (-0.25, 1.514)),
        ("lm", True, 0.8474, (-0.15, 1.445)),
    ],
)
def test_the_papers_gains(task, stable, radius, interval):
    report = stability_report(PIDGains.paper(task))
    assert report.stable is stable
    assert report.worst_radius == pytest.approx(radius, abs=5e-5)
    assert report.worst_kappa == 0
    assert report.stable_interval == pytest.approx(interval, abs=5e-4)


def recursion_matrix(kappa, gains):
    """One layer of one mode as a matrix on (v_l, v_{l-1}, integral_{l-1}), reference zero."""
    p, i, d = gains.p, gains.i, gains.d
    if i == 0:
        return np.array([[kappa - p - d, d], [1, 0]])
    # v+ = kappa v - p v + i (s - v) + d (v_prev - v);  s+ = s - v
    return np.array([[kappa - p - i - d, d, i], [1, 0, 0], [-1, 0, 1]])


@pytest.mark.slow
@given(gains=any_gains, kappa=st.complex_numbers(max_magnitude=1.0))
@settings(max_examples=200, deadline=None)
def test_poles_are_the_eigenvalues_of_the_recursion(gains, kappa):
    expected = np.linalg.eigvals(recursion_matrix(kappa, gains))
    # a triple root is only known to the cube root of rounding
    assert float(spectral_radius(kappa, gains)) == pytest.approx(np.abs(expected).max(), abs=2e-5)


def test_poles_are_batched_over_kappa():
    kappas = torch.linspace(-1, 1, 6).reshape(2, 3)
    assert poles(kappas, PIDGains.paper("lm")).shape == (2, 3, 3)
    assert poles(0.5, PIDGains(p=0.2)).shape == (3,)


def samples(count, seed, complex_kappa):
    random = np.random.default_rng(seed)
    kappa = random.uniform(-1.2, 2.0, count) + 0j
    if complex_kappa:
        kappa = random.uniform(0, 1, count) * np.exp(1j * random.uniform(0, 2 * np.pi, count))
    gains = random.uniform(0, 1, (count, 3)) * [2.5, 5.0, 1.3]
    gains[random.uniform(size=(count, 3)) < 0.15] = 0  # every kind occurs
    return kappa, gains


def batched_radius(kappa, gains):
    """Largest root modulus by NumPy on the polynomials of theory, batched over gains as well."""
    p, i, d = gains.T
    with_integral = [p + i + d - 1 - kappa, kappa - p - 2 * d, d + 0j]
    without = [p + d - kappa, -d + 0j, 0 * kappa]
    coefficients = np.where(i > 0, np.stack(with_integral), np.stack(without))
    companion = np.zeros((len(kappa), 3, 3), complex)
    companion[:, 0] = -coefficients.T
    companion[:, 1, 0] = companion[:, 2, 1] = 1
    return np.abs(np.linalg.eigvals(companion)).max(-1)


@pytest.mark.slow
def test_stable_interval_agrees_with_roots_on_100000_samples():
    kappa, gains = samples(100_000, 0, complex_kappa=False)
    radius = batched_radius(kappa, gains)
    agree = disagree = 0
    for k, g, r in zip(kappa.real, gains, radius, strict=True):
        if abs(r - 1) < 1e-7:
            continue  # on the boundary to rounding; none is expected
        chosen = PIDGains(p=g[0], i=g[1], d=g[2])
        agree += is_stable(chosen, k, k) == (r < 1)
        disagree += is_stable(chosen, k, k) != (r < 1)
    assert disagree == 0 and agree > 99_990


@pytest.mark.slow
def test_schur_cohn_agrees_with_roots_for_complex_kappa():
    kappa, gains = samples(2_000, 1, complex_kappa=True)
    radius = batched_radius(kappa, gains)
    stable = [
        bool(schur_cohn(k, PIDGains(p=g[0], i=g[1], d=g[2])))
        for k, g in zip(kappa, gains, strict=True)
    ]
    clear = np.abs(radius - 1) > 1e-9
    assert clear.mean() > 0.999
    assert (np.array(stable) == (radius < 1))[clear].all()
    assert 0.05 < np.mean(stable) < 0.95  # both verdicts occur


def test_schur_cohn_agrees_with_its_closed_form_for_pid():
    kappa, gains = samples(500, 2, complex_kappa=True)
    for k, (p, i, d) in zip(kappa, np.maximum(gains, 1e-3), strict=True):
        s = k - p
        sigma = s + d * np.conj(s)
        q2, q1, q0 = 1 - d**2, -(1 + sigma - i - d - 2 * d**2), sigma - d * (1 + i + d)
        expected = d < 1 and abs(q0) < q2 and abs(q2 * q1 - q0 * np.conj(q1)) < q2**2 - abs(q0) ** 2
        assert bool(schur_cohn(k, PIDGains(p=p, i=i, d=d))) == expected


@given(gains=any_gains, kappa_min=st.floats(-0.99, 1))
@settings(max_examples=200, deadline=None)
def test_region_over_an_interval_is_one_inequality(gains, kappa_min):
    if gains.p == 0:
        return
    load = 2 * gains.p + gains.i + 4 * gains.d
    assume(abs(load - 2 * (1 + kappa_min)) > 1e-12)  # on the border rounding decides
    assert is_stable(gains, kappa_min) == (load < 2 * (1 + kappa_min) and gains.i < 4 + 4 * gains.d)


def test_empty_region_for_a_large_derivative_or_integral():
    assert stable_interval(PIDGains(p=0.1, i=0.1, d=1.0)) is None
    assert stable_interval(PIDGains(p=0.1, i=4.5)) is None
    for kappa in (-1.0, 0.0, 1.0):
        assert spectral_radius(kappa, PIDGains(p=0.1, i=0.1, d=1.0)) >= 1
        assert spectral_radius(kappa, PIDGains(p=0.1, i=4.5)) >= 1


def test_softmax_is_marginal():
    report = stability_report(PIDGains())
    assert not report.stable and report.worst_radius == pytest.approx(1) and report.worst_kappa == 1
    assert "marginal" in report.verdict and math.isinf(report.gain_margin)


# Counter-examples to "stable for any positive gains", each Hurwitz in continuous time.


def test_counter_example_the_imagenet_gains_under_uniform_attention():
    gains, kernel = PIDGains.paper("deit"), torch.full((4, 4), 0.25, dtype=torch.float64)
    assert continuous_poles(torch.linalg.eigvals(kernel), gains).real.max() < -0.34
    expected = [1, 0.35, -0.9, 0.05]
    assert characteristic_polynomial(0.0, gains).real.tolist() == pytest.approx(expected)
    found = sorted(poles(0.0, gains).real.tolist())
    assert found == pytest.approx([-1.1617, 0.0570, 0.7547], abs=5e-5)
    values = torch.tensor([[1.0], [-1.0], [0.5], [0.2]])
    assert simulate(kernel, values, gains, 200)[-1].abs().max() > 1e11


def test_counter_example_no_positive_gains_are_stable_for_every_kernel():
    tiny = PIDGains(p=1e-3, i=1e-3, d=1e-3)
    swap = torch.tensor([[1e-4, 1 - 1e-4], [1 - 1e-4, 1e-4]], dtype=torch.float64)
    kappas = torch.linalg.eigvals(swap)
    assert spectral_radius(kappas, tiny).max() == pytest.approx(1.0033, abs=5e-5)
    assert continuous_poles(kappas, tiny).real.max() < 0


def test_counter_example_large_p():
    assert spectral_radius(1.0, PIDGains(p=3, i=1)) == pytest.approx(2.73, abs=5e-3)
    assert continuous_poles(1.0, PIDGains(p=3, i=1)).real.max() < 0


def test_the_derivative_shrinks_the_discrete_region():
    widths = [stable_interval(PIDGains(p=0.5, i=0.3, d=d))[0] for d in (0, 0.1, 0.2)]
    assert widths == sorted(widths)


def test_causal_attention_is_asymptotically_stable_under_two_of_three_presets():
    kappas = torch.linalg.eigvals(causal_kernel(16))
    verdicts = {
        t: stability_report(PIDGains.paper(t), kappas=kappas).stable
        for t in ("deit", "segmenter", "lm")
    }
    assert verdicts["segmenter"] and verdicts["lm"]


def test_report_over_a_spectrum_looks_at_every_eigenvalue():
    kappas = torch.linalg.eigvals(softmax_kernel(20, sharpness=4.0))
    for task in ("deit", "segmenter", "lm"):
        gains = PIDGains.paper(task)
        report = stability_report(gains, kappas=kappas)
        assert report.worst_radius == pytest.approx(float(spectral_radius(kappas, gains).max()))
        assert report.stable == (report.worst_radius < 1)
        inside = stability_report(gains.scaled(report.gain_margin * 0.999), kappas=kappas)
        outside = stability_report(gains.scaled(report.gain_margin * 1.001), kappas=kappas)
        assert inside.stable and not outside.stable


def test_gain_margin_scales_the_imagenet_gains_to_the_boundary():
    gains = PIDGains.paper("deit")
    margin = gain_margin(gains)
    assert margin == pytest.approx(0.8696, abs=5e-5)
    assert is_stable(gains.scaled(margin - 1e-6)) and not is_stable(gains.scaled(margin + 1e-6))


def test_settling_depth_is_the_first_depth_below_one_per_cent():
    for radius in (0.2, 0.5, 0.8126, 0.99):
        depth = settling_depth(radius)
        assert radius**depth <= 0.01 < radius ** (depth - 1)
    assert settling_depth(0.0) == 1 and settling_depth(1.0) is settling_depth(math.nan) is None


def test_report_prints_and_serialises():
    report = stability_report(PIDGains.paper("deit"))
    assert "unstable on [0, 1]" in str(report) and "never" in str(report)
    assert "grows 1.16x per layer" in report.verdict
    fields = json.loads(report.to_json())
    assert fields["stable"] is False and fields["gains"]["p"] == 0.8 and fields["worst_kappa"] == 0
    assert json.loads(stability_report(PIDGains()).to_json())["gain_margin"] is None


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        (PIDGains(p=1.0033), "grows 1.0033x per layer"),  # two decimals would say 1.00
        (PIDGains(p=0.997), "shrinks to 0.9970x per layer"),
        (PIDGains(p=0.6), "shrinks to 0.60x per layer and is down to 1 % after 10 layers"),
    ],
)
def test_the_verdict_shows_as_many_digits_as_it_needs(gains, words):
    assert words in stability_report(gains).verdict


def test_one_layer_is_no_layers():
    assert stability_report(PIDGains(p=1.0), 1.0).verdict.endswith("after 1 layer")


def test_a_kappa_range_no_kernel_has_is_refused():
    for low, high in ((0.5, 0.2), (-1.5, 1.0), (0.0, 1.2), (math.nan, 1.0)):
        with pytest.raises(InputError, match="kappa range"):
            stability_report(PIDGains(p=0.5), low, high)
    with pytest.raises(InputError, match="kappas must be finite"):
        stability_report(PIDGains(p=0.5), kappas=[])


@pytest.mark.parametrize(
    "function", [poles, spectral_radius, characteristic_polynomial, schur_cohn, continuous_poles]
)
def test_gains_come_first_and_the_earlier_order_still_means_the_same(function):
    gains, kappa = PIDGains(p=0.4, i=0.1, d=0.05), [0.2, 0.5, 1.0]
    expected = function(gains, kappa)
    for arguments in ((kappa, gains), ("0.4,0.1,0.05", kappa), ((0.4, 0.1, 0.05), kappa)):
        assert torch.equal(function(*arguments), expected)
    with pytest.raises(InputError, match="gains, then kappa"):
        function(0.5, "0.4,0.1,0.05")


@pytest.mark.parametrize("seed", range(8))
def test_an_eigenvalue_that_rounding_puts_below_one_is_not_called_stable(seed):
    """Without p and d the mode of eigenvalue 1 swings for ever."""
    kernel = softmax_kernel(5, seed=seed)
    report = stability_report(PIDGains(i=0.2), kappas=torch.linalg.eigvals(kernel))
    assert not report.stable and report.verdict.startswith("marginal")
    assert report.settling_depth is None


def test_of_modes_that_are_equally_bad_a_real_one_is_shown():
    """Without control the radius is |kappa|: all of the circle, up to rounding."""
    assert abs(stability_report(PIDGains(), kappas="disc").worst_kappa.imag) < 1e-12
