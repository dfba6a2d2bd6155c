import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import differential_evolution

from pidformer.control import PIDGains, design_gains, is_stable, settling_depth, worst_radius
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
