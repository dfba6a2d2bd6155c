import pytest
import torch
from scipy.optimize import minimize

from pidformer.control import (
    PIDGains,
    bregman,
    dirichlet_energy,
    dirichlet_gradient,
    energy,
    energy_gradient,
    fidelity_energy,
    fidelity_gradient,
    laplacian,
    minimise_energy,
    simulate,
    steady_state,
)
from pidformer.errors import InputError
from tests.kernels import softmax_kernel, symmetric_kernel, values

WEIGHTS, REFERENCE, V = softmax_kernel(6), values(6, 3, seed=3), values(6, 3, seed=4)
STRENGTH = 0.7


def test_dirichlet_energy_is_the_double_sum():
    total = sum(
        0.5 * WEIGHTS[i, j] * (V[i] - V[j]).square().sum() for i in range(6) for j in range(6)
    )
    torch.testing.assert_close(dirichlet_energy(V, WEIGHTS), total)


@pytest.mark.parametrize(
    ("function", "gradient"),
    [
        (lambda v: dirichlet_energy(v, WEIGHTS), lambda v: dirichlet_gradient(v, WEIGHTS)),
        (
            lambda v: fidelity_energy(v, REFERENCE, STRENGTH),
            lambda v: fidelity_gradient(v, REFERENCE, STRENGTH),
        ),
        (
            lambda v: energy(v, WEIGHTS, REFERENCE, STRENGTH),
            lambda v: energy_gradient(v, WEIGHTS, REFERENCE, STRENGTH),
        ),
    ],
    ids=["J", "G", "E"],
)
def test_gradients_equal_autograd(function, gradient):
    v = V.clone().requires_grad_()
    (expected,) = torch.autograd.grad(function(v), v)
    torch.testing.assert_close(gradient(V), expected)


def test_minimise_energy_agrees_with_a_numerical_minimiser():
    found = minimize(
        lambda x: float(energy(x.reshape(6, 3), WEIGHTS, REFERENCE, STRENGTH)),
        V.numpy().ravel(),
        jac=lambda x: (
            energy_gradient(x.reshape(6, 3), WEIGHTS, REFERENCE, STRENGTH).numpy().ravel()
        ),
        options={"gtol": 1e-10},
    )
    expected = torch.from_numpy(found.x.reshape(6, 3))
    torch.testing.assert_close(
        minimise_energy(WEIGHTS, REFERENCE, STRENGTH), expected, atol=1e-7, rtol=0
    )


def test_p_control_settles_at_the_minimum_of_the_energy():
    kernel = symmetric_kernel(6)  # doubly stochastic: weights K / 2 give W = K, L = Id - K
    limit = steady_state(kernel, REFERENCE, PIDGains(p=STRENGTH))
    torch.testing.assert_close(limit, minimise_energy(kernel / 2, REFERENCE, STRENGTH))


def test_exact_bregman_has_its_closed_form_and_ends_at_the_reference():
    steps = bregman(torch.zeros_like(V), WEIGHTS, REFERENCE, strength=STRENGTH, steps=80)
    matrix = laplacian(WEIGHTS)
    eye = torch.eye(6, dtype=torch.float64)
    shrink = matrix @ torch.linalg.inv(matrix + STRENGTH * eye)
    for n in (1, 2, 5, 20):
        expected = (eye - torch.linalg.matrix_power(shrink, n)) @ REFERENCE
        torch.testing.assert_close(steps[n], expected)
    torch.testing.assert_close(steps[1], minimise_energy(WEIGHTS, REFERENCE, STRENGTH))
    torch.testing.assert_close(steps[-1], REFERENCE, atol=1e-6, rtol=0)
    # so PI control minimises J subject to v = reference, not E, as the paper's text has it
    at_limit = energy(steps[-1], WEIGHTS, REFERENCE, STRENGTH)
    assert at_limit > 1.5 * energy(steps[1], WEIGHTS, REFERENCE, STRENGTH)


def test_one_step_bregman_is_the_euler_step_of_pi_control():
    kernel = symmetric_kernel(6)
    steps = bregman(REFERENCE, kernel / 2, REFERENCE, strength=0.3, steps=15, exact=False)
    layers = simulate(kernel, REFERENCE, PIDGains(p=0.3, i=0.3), 15)
    torch.testing.assert_close(steps, layers, atol=1e-9, rtol=0)


def test_one_step_bregman_for_general_weights_uses_their_laplacian():
    steps = bregman(REFERENCE, WEIGHTS, REFERENCE, strength=0.3, steps=4, exact=False)
    value, integral = REFERENCE, torch.zeros_like(REFERENCE)
    for expected in steps[1:]:
        error = REFERENCE - value
        integral = integral + error
        value = value - laplacian(WEIGHTS) @ value + 0.3 * error + 0.3 * integral
        torch.testing.assert_close(value, expected)


def test_symmetrised_softmax_weights_are_not_row_stochastic():
    sums = (WEIGHTS + WEIGHTS.T).sum(-1)
    assert sums.max() - sums.min() > 0.1
    assert sums.mean() == pytest.approx(2.0)


def test_softmax_attention_is_no_gradient_flow():
    asymmetry = (WEIGHTS - WEIGHTS.T).abs().max()
    assert asymmetry > 0.05  # a gradient has a symmetric Jacobian, K - Id has not


def test_bad_input_is_named():
    with pytest.raises(InputError, match="strength must be > 0"):
        minimise_energy(WEIGHTS, REFERENCE, 0.0)
    with pytest.raises(InputError, match=r"square \(N, N\), got shape \(2, 3\)"):
        dirichlet_energy(V, torch.ones(2, 3))
