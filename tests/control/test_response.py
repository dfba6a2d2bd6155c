"""Responses of the loop, against scipy.signal's."""

import numpy as np
import pytest
import torch
from scipy import signal

from pidformer.control import (
    PIDGains,
    as_feedback,
    continuous_poles,
    disturbance_response,
    frequency_response,
    poles,
    root_locus,
    spectral_radius,
    step_response,
)
from pidformer.control.feedback import acting_law
from pidformer.errors import InputError

GAINS = [
    PIDGains(p=0.4, i=0.1, d=0.05),
    PIDGains(p=0.8, i=0.5, d=0.05),  # the paper's, unstable at kappa = 0
    PIDGains(p=0.6),
    PIDGains(p=0.5, d=0.2),
    PIDGains(p=0.5, i=0.5),
]
KAPPAS = [-0.3, 0.0, 0.5, 1.0]


def systems(gains, kappa):
    """Loop, tracking and disturbance as scipy.signal systems, from state-space matrices.

    The state is (v_l, S_{l-1}, e_{l-1}): written down from the recursion, not from our polynomials.
    """
    p, i, d = gains.p, gains.i, gains.d
    plant = np.array([[kappa - p - i - d, i, -d], [-1.0, 1.0, 0.0], [-1.0, 0.0, 0.0]])
    reference = np.array([[p + i + d], [1.0], [1.0]])
    disturbance = np.array([[1.0], [0.0], [0.0]])
    see, none = np.array([[1.0, 0.0, 0.0]]), np.zeros((1, 1))
    return (
        signal.StateSpace(plant, reference, see, none, dt=1),
        signal.StateSpace(plant, disturbance, see, none, dt=1),
    )


@pytest.mark.parametrize("gains", GAINS, ids=str)
@pytest.mark.parametrize("kappa", KAPPAS)
def test_responses_over_depth_equal_scipys(gains, kappa):
    for system, found in zip(
        systems(gains, kappa),
        (step_response(gains, kappa, 30), disturbance_response(gains, kappa, 30)),
        strict=True,
    ):
        _, (expected,) = signal.dstep(system, n=31)
        np.testing.assert_allclose(found, expected[:, 0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gains", GAINS, ids=str)
@pytest.mark.parametrize("kappa", KAPPAS)
def test_frequency_responses_equal_scipys(gains, kappa):
    omega = np.linspace(0.05, np.pi, 40)
    found = frequency_response(gains, kappa, omega)
    for system, ours in zip(
        systems(gains, kappa), (found.tracking, found.disturbance), strict=True
    ):
        _, expected = signal.dfreqresp(system, omega)
        np.testing.assert_allclose(ours, expected, rtol=1e-8)
    np.testing.assert_allclose(found.tracking + found.sensitivity, np.ones(40), rtol=1e-12)


@pytest.mark.parametrize("text", ["0.8,0.5,0.05,0.1,implicit", "0.4,0.1,0.05,1,step=0.5"])
@pytest.mark.parametrize("kappa", KAPPAS)
def test_responses_follow_the_discretisation(text, kappa):
    """A step of the reference through the network's own layers, from rest; and the same in z."""
    law = acting_law(as_feedback(text))
    found, value, total, previous = step_response(text, kappa, 12), 0.0, 0.0, 0.0
    for depth in range(12):
        error = 1.0 - value
        total += error
        own = (kappa + law.skip) * value
        value = law.scale * (own + law.p * error + law.i * total + law.d * (error - previous))
        previous = error
        assert float(found[depth + 1]) == pytest.approx(value, rel=1e-9, abs=1e-12)
    response = frequency_response(text, kappa, np.array([0.3, 2.0]))
    z = np.exp(1j * np.array([0.3, 2.0]))
    control = law.p + law.i * z / (z - 1) + law.d * (z - 1) / z
    plant = law.scale / (z - law.scale * (kappa + law.skip))
    np.testing.assert_allclose(response.loop, plant * control, rtol=1e-9)


def test_what_has_no_such_loop_is_refused():
    with pytest.raises(InputError, match="reference inside attention"):
        step_response("resformer", 0.5)
    with pytest.raises(InputError, match="xsa is not linear"):
        frequency_response("xsa", 0.5, [0.1])
    with pytest.raises(InputError, match="continuous model is that of PID gains"):
        continuous_poles("laplacian", 0.5)
    assert torch.equal(continuous_poles("deit,step=0.5", 0.5), continuous_poles("deit", 0.5))


def test_an_integral_removes_a_constant_disturbance_and_p_alone_does_not():
    with_integral = disturbance_response("0.4,0.1,0.05", 0.5, 200)[-1]
    without = disturbance_response("0.4,0,0", 0.5, 200)[-1]
    assert abs(float(with_integral)) < 1e-6
    assert float(without) == pytest.approx(1 / (1 + 0.4 - 0.5))  # 1 / (1 + p - kappa)


def test_many_kappas_are_answered_at_once_and_complex_ones_too():
    kappas = torch.tensor([0.2, 0.3 + 0.4j], dtype=torch.complex128)
    both = step_response("0.4,0.1,0.05", kappas, 5)
    assert both.shape == (2, 6)
    torch.testing.assert_close(both[0].real, step_response("0.4,0.1,0.05", 0.2, 5))


def test_a_locus_passes_through_the_poles_and_leaves_the_circle_where_stability_ends():
    gains = PIDGains(p=0.4, i=0.1, d=0.05)
    values = 0.015 + 0.01 * torch.arange(150, dtype=torch.float64)
    locus = root_locus(gains, "p", values, kappa=0.0)
    assert locus.shape == (150, 3)
    assert torch.equal(root_locus(gains, "p", [0.4], 0.3)[0], poles(gains, 0.3))
    is_inside = locus.abs().amax(-1) < 1
    # P + I/2 + 2 D < 1 at kappa = 0
    assert torch.equal(is_inside, values < 1 - 0.05 - 0.1)
    assert float(spectral_radius(PIDGains(p=0.86, i=0.1, d=0.05), 0.0)) > 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: step_response("0.4,0.1", 0.5), "P,I,D"),
        (lambda: step_response("0.4,0,0", 0.5, 0), "layers must be at least 1"),
        (lambda: frequency_response("0.4,0,0", 0.5, [0.0]), "omega"),
        (lambda: root_locus("0.4,0,0", "q", [1.0]), "unknown gain 'q'"),
        (lambda: root_locus("0.4,0,0", "p", [-1.0]), "gain p must be >= 0"),
    ],
)
def test_wrong_input_is_one_line(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
