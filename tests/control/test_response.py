"""Responses of the loop, against scipy.signal's."""

import numpy as np
import pytest
import torch
from scipy import signal

from pidformer.control import (
    PIDGains,
    disturbance_response,
    frequency_response,
    poles,
    root_locus,
    spectral_radius,
    step_response,
)
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
