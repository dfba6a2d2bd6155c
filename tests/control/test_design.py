import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import differential_evolution

from pidformer.control import (
    PIDGains,
    as_spectrum,
    design_gains,
    discretised,
    is_stable,
    settling_depth,
    spectral_radius,
    worst_radius,
)
from pidformer.errors import InputError


@given(kappa_min=st.floats(-0.99, 1))
@settings(max_examples=50, deadline=None)
def test_closed_forms(kappa_min):
    middle = (1 + kappa_min) / 2
    p, pi = design_gains("P", kappa_min), design_gains("PI", kappa_min)
    assert (p.p, p.i, p.d) == (middle, 0, 0)
    assert (pi.p, pi.i, pi.d) == (middle, middle, 0)
    assert worst_radius(p, kappa_min) == pytest.approx((1 - kappa_min) / 2, abs=1e-6)
    assert worst_radius(pi, kappa_min) == pytest.approx(((1 - kappa_min) / 2) ** 0.5, abs=1e-6)


@pytest.mark.parametrize("kappa_min", [0.0, -0.4])
@pytest.mark.parametrize("kind", ["P", "PD", "PI", "PID"])
def test_no_gains_found_by_search_beat_the_design(kind, kappa_min):
    bounds = {"P": (0, 1.5), "I": (1e-6, 2), "D": (0, 0.6)}

    def radius(x):
        fields = dict(zip((letter.lower() for letter in kind), x, strict=True))
        return worst_radius(PIDGains(**fields), kappa_min, 33)

    best = differential_evolution(
        radius, [bounds[letter] for letter in kind], seed=0, maxiter=40, popsize=12, polish=False
    )
    designed = worst_radius(design_gains(kind, kappa_min), kappa_min, 33)
    assert designed <= best.fun + 1e-9
    assert best.fun - designed < 0.02  # the search comes near, so it is a fair opponent


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "d"), [("PD", 0.1), ("PID", 0.05), ("PID", 0.2)])
def test_a_fixed_derivative_is_kept_and_the_rest_is_optimal(kind, d):
    gains = design_gains(kind, d=d)
    best = worst_radius(gains)
    assert gains.d == d and is_stable(gains)
    for step in (-0.02, 0.02):
        assert worst_radius(PIDGains(p=gains.p + step, i=gains.i, d=d)) > best - 1e-4
        if gains.i:
            assert worst_radius(PIDGains(p=gains.p, i=gains.i + step, d=d)) > best - 1e-4
    naive = design_gains(kind)
    assert best < worst_radius(PIDGains(p=naive.p, i=naive.i, d=d))


@pytest.mark.parametrize(("kind", "depth"), [("P", 12), ("PI", 20), ("PI", 48), ("PD", 30)])
def test_a_settling_depth_is_met_with_the_smallest_gains(kind, depth):
    gains, fastest = design_gains(kind, max_settling_depth=depth), design_gains(kind)
    assert settling_depth(worst_radius(gains)) <= depth
    assert gains.p + gains.i < fastest.p + fastest.i
    smaller = gains.scaled(0.98)
    assert settling_depth(worst_radius(smaller)) > depth


def test_a_settling_depth_that_cannot_be_met_says_what_can():
    with pytest.raises(InputError, match=r"within 5 layers; the fastest .* takes 14"):
        design_gains("PI", max_settling_depth=5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "I"}, "cannot design I"),
        ({"kind": "softmax"}, "cannot design softmax"),
        ({"kind": "PDI"}, "did you mean"),
        ({"kind": "P", "kappa_min": -1.0}, "no gains are stable"),
        ({"kind": "P", "kappa_min": 1.1}, "kappa range"),
        ({"kind": "PI", "d": 0.1}, "use PID"),
        ({"kind": "PID", "d": 0.5}, "below 0.5"),
        ({"kind": "PID", "d": -0.5}, "gain d"),
        ({"kind": "PI", "beta": 2.0}, "beta"),
    ],
)
def test_bad_designs_get_one_clear_line(arguments, words):
    with pytest.raises(InputError, match=words):
        design_gains(**arguments)


@given(st.floats(-1, 0.9), st.sampled_from([1.0, 0.5, 0.2]), st.floats(0, 2))
@settings(max_examples=40, deadline=None)
def test_closed_forms_of_other_discretisations(kappa_min, step, d):
    """With s = h / (1 + d) the radius is s (1 - kappa_min) / 2, or its root with an integral."""
    size = step / (1 + d)
    if kappa_min == -1 and size == 1:
        return
    form = {"derivative": "implicit", "step": step, "d": d}
    half = size * (1 - kappa_min) / 2
    p, pi = design_gains("PD", kappa_min, **form), design_gains("PID", kappa_min, **form)
    assert p.d == pi.d == d
    assert worst_radius(p, kappa_min) == pytest.approx(half, abs=1e-6)
    assert worst_radius(pi, kappa_min) == pytest.approx(half**0.5, abs=1e-6)


@pytest.mark.parametrize("kind", ["P", "PI"])
def test_a_design_for_the_unit_disc(kind):
    """P: the pole 1 - h (1 - kappa + p) fills a disc of radius h; p = 1 / h - 1 centres it."""
    gains = design_gains(kind, kappas="disc", step=0.5)
    circle, _ = as_spectrum("disc")
    radius = float(spectral_radius(gains, circle).max())
    inside = torch.polar(torch.rand(2000), 6.3 * torch.rand(2000)).to(torch.complex128)
    assert float(spectral_radius(gains, inside).max()) <= radius + 1e-9  # the worst is on its edge
    assert gains.step == 0.5 and radius == pytest.approx(0.5 if kind == "P" else 0.5**0.5, abs=1e-3)
    if kind == "P":
        assert gains.p == pytest.approx(1, abs=1e-4)
    for wrong, words in (({}, "shorter step|step is shorter"), ({"step": 1.5}, "step must be in")):
        with pytest.raises(InputError, match=words):
            design_gains(kind, kappas="disc", **wrong)
    with pytest.raises(InputError, match="unknown spectrum 'disk'"):
        design_gains(kind, kappas="disk", step=0.5)


@pytest.mark.parametrize("form", [{}, {"step": 0.5}, {"derivative": "implicit", "d": 0.3}])
def test_a_design_for_a_measured_spectrum_beats_the_interval(form):
    """Complex eigenvalues that the interval of their real parts does not know."""
    torch.manual_seed(0)
    kappas = torch.polar(0.85 * torch.rand(200).sqrt(), 6.3 * torch.rand(200)).to(torch.complex128)
    kind = "PID" if "d" in form else "PI"
    gains = design_gains(kind, kappas=kappas, **form)
    usual = design_gains(kind, float(kappas.real.min()), **form)
    radius, before = (float(spectral_radius(g, kappas).max()) for g in (gains, usual))
    assert radius < 1 and radius <= before + 1e-9
    rng = np.random.default_rng(0)
    for p, i in rng.uniform(0.05, 2, (200, 2)):
        other = discretised(PIDGains(p=p, i=i, d=gains.d), **{k: form[k] for k in form if k != "d"})
        assert float(spectral_radius(other, kappas).max()) >= radius - 5e-3
