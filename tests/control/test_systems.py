"""Every lemma and proposition of the paper as a test, in its corrected form."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from pidformer.control import (
    PIDGains,
    continuous_poles,
    sensitivity,
    simulate,
    steady_state,
    trajectory,
    transfer_matrix,
)
from pidformer.errors import InputError
from tests.kernels import causal_kernel, softmax_kernel, symmetric_kernel, values

P = PIDGains(p=0.8, beta=0.1)
PD = PIDGains(p=0.8, d=0.3, beta=0.4)
PI = PIDGains(p=0.5, i=0.3)
PID = PIDGains(p=0.8, i=0.5, d=0.05, beta=0.1)
CONTROLLERS = [None, P, PD, PI, PID, PIDGains(i=0.3), PIDGains(d=0.5), PIDGains(i=0.2, d=0.1)]


def integrate(kernel, v0, gains, times):
    """The controlled state-space model, by SciPy, straight from its definition."""
    gains = gains or PIDGains()
    kernel, v0 = kernel.numpy(), v0.numpy()
    shape, reference = v0.shape, gains.beta * v0

    def slope(_, packed):
        value, integral = packed.reshape(2, *shape)
        error = reference - value
        # V' = K V - V + P e + I int e + D e'  with  e' = -V'
        rate = (kernel @ value - value + gains.p * error + gains.i * integral) / (1 + gains.d)
        return np.concatenate([rate.ravel(), error.ravel()])

    packed = np.concatenate([v0.ravel(), np.zeros(v0.size)])
    states = []
    for begin, end in zip([0.0, *times], times, strict=False):  # to each time, never interpolated
        if end > begin:
            solved = solve_ivp(slope, (begin, end), packed, "DOP853", rtol=3e-14, atol=1e-15)
            packed = solved.y[:, -1]
        states.append(packed[: v0.size].reshape(shape))
    return torch.from_numpy(np.stack(states))


@pytest.mark.parametrize("gains", CONTROLLERS, ids=lambda g: g.kind if g else "none")
@pytest.mark.parametrize("make", [softmax_kernel, causal_kernel])
def test_trajectory_agrees_with_an_ode_solver(gains, make):
    times = [0.0, 0.3, 1.0, 4.0, 12.0]
    for seed in range(3):
        kernel, v0 = make(7, seed), values(7, 3, seed)
        closed = trajectory(kernel, v0, gains, times)
        torch.testing.assert_close(closed, integrate(kernel, v0, gains, times), rtol=0, atol=1e-10)


def test_printed_lemma_4_misses_its_own_initial_value():
    kernel, v0 = softmax_kernel(6), values(6)
    inverse = torch.linalg.inv(kernel - 1.8 * torch.eye(6, dtype=torch.float64))
    printed_at_zero = v0 + inverse @ (P.beta * v0) - P.p * inverse @ (P.beta * v0)
    assert (printed_at_zero - v0).abs().max() > 1e-3
    torch.testing.assert_close(trajectory(kernel, v0, P, [0.0])[0], v0)


def test_lemma_1_and_2_without_control_the_limit_has_rank_one():
    kernel, v0 = softmax_kernel(9), values(9)
    limit = steady_state(kernel, v0, None)
    assert torch.linalg.matrix_rank(limit) <= 1
    assert (limit - limit[0]).abs().max() < 1e-12  # all tokens alike
    torch.testing.assert_close(trajectory(kernel, v0, None, [400.0])[0], limit)
    torch.testing.assert_close(simulate(kernel, v0, None, 400)[-1], limit)


def test_the_limit_without_control_can_have_rank_zero():
    kernel, v0 = softmax_kernel(5), values(5, 1)
    pi = transfer_matrix(kernel, None)[0]
    v0 = v0 - (pi @ v0)  # pi sums to one, so pi v0 becomes 0
    assert steady_state(kernel, v0, None).abs().max() < 1e-12


def test_causal_attention_collapses_to_the_first_token():
    kernel, v0 = causal_kernel(6), values(6)
    torch.testing.assert_close(steady_state(kernel, v0, None), v0[:1].expand_as(v0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_reducible_kernel_collapses_within_its_blocks(dtype):
    kernel = torch.block_diag(softmax_kernel(3, 1), softmax_kernel(4, 2)).to(dtype)
    v0 = values(7)
    limit = steady_state(kernel, v0, None)
    assert torch.linalg.matrix_rank(limit) == 2
    exact = trajectory(kernel, v0, None, [400.0])[0]
    rounding = 1e-12 if dtype == torch.float64 else 1e-4  # of a row's sum, 400 times over
    torch.testing.assert_close(limit, exact, rtol=0, atol=rounding)


@pytest.mark.parametrize("gains", [P, PD, PI, PID], ids=lambda g: g.kind)
def test_steady_state_is_the_limit_of_the_trajectory(gains):
    kernel, v0 = softmax_kernel(8), values(8)
    limit = steady_state(kernel, v0, gains)
    torch.testing.assert_close(trajectory(kernel, v0, gains, [600.0])[0], limit)


@pytest.mark.parametrize(
    "gains",
    [P, PIDGains(p=0.6, d=0.1), PI, PIDGains.paper("segmenter"), PIDGains.paper("lm")],
    ids=lambda g: g.kind,
)
@pytest.mark.parametrize("first_layer", ["free", "controlled"])
def test_the_stable_recursion_has_the_same_limit(gains, first_layer):
    kernel, v0 = symmetric_kernel(8), values(8)
    kernel = kernel @ kernel  # spectrum in [0, 1]
    last = simulate(kernel, v0, gains, 500, first_layer)[-1]
    torch.testing.assert_close(last, steady_state(kernel, v0, gains))


def test_lemma_4_p_control_keeps_the_rank_of_the_input():
    kernel = softmax_kernel(9)
    for rank in (1, 3, 5):
        v0 = values(9, rank) @ values(rank, 5, seed=2)
        assert torch.linalg.matrix_rank(steady_state(kernel, v0, P)) == rank


def test_p_limit_averages_with_non_negative_weights_that_sum_to_beta():
    matrix = transfer_matrix(softmax_kernel(9), P)
    assert (matrix >= 0).all()
    torch.testing.assert_close(matrix.sum(-1), torch.full((9,), P.beta, dtype=torch.float64))


@given(
    seed=st.integers(0, 10**6),
    p=st.floats(0.01, 10),
    beta=st.floats(0.05, 1),
    sharpness=st.floats(0.1, 5),
)
@settings(max_examples=60, deadline=None)
def test_proposition_1_bounds_the_change_by_beta(seed, p, beta, sharpness):
    kernel, gains = softmax_kernel(6, seed, sharpness), PIDGains(p=p, beta=beta)
    v0, perturbation = values(6, 3, seed), values(6, 3, seed + 1)
    change = steady_state(kernel, v0 + perturbation, gains) - steady_state(kernel, v0, gains)
    for norm in (lambda x: x.abs().max(), lambda x: x.abs().sum(-1).max()):  # both readings
        assert norm(change) <= beta * norm(perturbation) * (1 + 1e-9)


def test_proposition_1_is_tight_and_only_the_bound_is_independent_of_p():
    kernel = softmax_kernel(6)
    constant = torch.ones(6, 1, dtype=torch.float64)
    for p in (0.01, 1.0, 100.0):
        found = sensitivity(kernel, PIDGains(p=p, beta=0.3))
        assert found.gain == pytest.approx(0.3) and found.bound == 0.3
        assert found.relative == pytest.approx(1.0)
        torch.testing.assert_close(found.matrix @ constant, 0.3 * constant)
    changes = [
        (transfer_matrix(kernel, PIDGains(p=p)) @ values(6, 1)).abs().max() for p in (0.01, 10)
    ]
    assert changes[1] > 1.5 * changes[0]  # so the change itself does depend on p


def test_b_inverse_has_norm_exactly_one_over_p():
    kernel = softmax_kernel(7)
    for p in (0.1, 0.8, 3.0):
        inverse = torch.linalg.inv(kernel - (1 + p) * torch.eye(7, dtype=torch.float64))
        assert torch.linalg.matrix_norm(inverse, torch.inf) == pytest.approx(1 / p)


@pytest.mark.parametrize("gains", [None, PIDGains(d=0.5, beta=0.4)])
def test_without_control_a_perturbation_passes_with_gain_one(gains):
    """Nor does D alone hold the limit, whatever its reference."""
    found = sensitivity(softmax_kernel(6), gains)
    assert found.gain == pytest.approx(found.relative) == pytest.approx(1.0) and found.bound == 1.0


def test_lemma_5_pd_has_the_limit_of_p_and_gets_there_slower():
    kernel, v0 = softmax_kernel(8), values(8)
    p, pd = PIDGains(p=0.8, beta=0.4), PIDGains(p=0.8, d=0.5, beta=0.4)
    torch.testing.assert_close(steady_state(kernel, v0, p), steady_state(kernel, v0, pd))
    # time runs slower by 1 + d
    torch.testing.assert_close(
        trajectory(kernel, v0, pd, [1.5, 6.0]), trajectory(kernel, v0, p, [1.0, 4.0])
    )


def test_pid_settles_at_beta_v0_whatever_the_kernel():
    v0 = values(7)
    for seed in range(3):
        limit = trajectory(softmax_kernel(7, seed), v0, PID, [800.0])[0]
        torch.testing.assert_close(limit, PID.beta * v0)


def test_pid_does_not_attenuate_a_perturbation_beyond_beta():
    found = sensitivity(softmax_kernel(7), PID)
    torch.testing.assert_close(found.matrix, PID.beta * torch.eye(7, dtype=torch.float64))


def test_the_integral_settles_at_what_holds_the_reference():
    kernel, v0 = symmetric_kernel(6) @ symmetric_kernel(6), values(6)
    gains = PIDGains.paper("segmenter")
    states = simulate(kernel, v0, gains, 600)
    reference = gains.beta * v0
    integral = (reference - states[1:-1]).sum(0)
    torch.testing.assert_close(gains.i * integral, reference - kernel @ reference)


@given(
    seed=st.integers(0, 10**6),
    p=st.floats(0.01, 3),
    i=st.floats(0.01, 3),
    d=st.floats(0, 3),
    sharpness=st.floats(0.1, 6),
)
@settings(max_examples=60, deadline=None)
def test_proposition_2_any_positive_gains_are_stable_in_continuous_time(seed, p, i, d, sharpness):
    kappas = torch.linalg.eigvals(softmax_kernel(6, seed, sharpness))
    assert continuous_poles(kappas, PIDGains(p=p, i=i, d=d)).real.max() < 0


def test_continuous_poles_are_the_eigenvalues_of_the_block_system():
    kernel, gains = softmax_kernel(5), PIDGains(p=0.4, i=0.7, d=0.2)
    eye, zero = torch.eye(5, dtype=torch.float64), torch.zeros(5, 5, dtype=torch.float64)
    lower = torch.cat([-gains.i * eye, kernel - (1 + gains.p) * eye], 1) / (1 + gains.d)
    system = torch.cat([torch.cat([zero, eye], 1), lower])
    found = continuous_poles(torch.linalg.eigvals(kernel), gains).flatten()
    expected = torch.linalg.eigvals(system)
    assert (found[:, None] - expected).abs().amin(0).max() < 1e-9
    assert (found[:, None] - expected).abs().amin(1).max() < 1e-9


def test_integral_without_proportional_has_no_steady_state():
    with pytest.raises(InputError, match="choose p > 0"):
        steady_state(softmax_kernel(4), values(4), PIDGains(i=0.5))


def test_solutions_are_differentiable():
    kernel, v0 = softmax_kernel(3).requires_grad_(), values(3, 1).requires_grad_()
    for gains in (None, P, PID):
        for function in (
            lambda k, v, g=gains: trajectory(k.softmax(-1), v, g, [0.5]),
            lambda k, v, g=gains: simulate(k.softmax(-1), v, g, 3),
        ):
            assert torch.autograd.gradcheck(function, (kernel, v0))


def test_lists_and_arrays_are_accepted():
    found = trajectory([[0.5, 0.5], [0.2, 0.8]], np.eye(2, dtype=np.float32), P, (0, 1))
    assert found.shape == (2, 2, 2) and found.dtype == torch.float64


@pytest.mark.parametrize(
    ("kernel", "v0", "words"),
    [
        (torch.ones(2, 3) / 3, torch.ones(2, 1), ["square", "(2, 3)"]),
        (torch.tensor([[0.5, 0.6], [0.5, 0.5]]), torch.ones(2, 1), ["row 0", "+0.1", "softmax"]),
        (torch.tensor([[-0.5, 1.5], [0.5, 0.5]]), torch.ones(2, 1), ["negative", "-0.5"]),
        (torch.full((2, 2), torch.nan), torch.ones(2, 1), ["finite"]),
        (torch.eye(3), torch.ones(2, 1), ["(2, 1)", "(3, 3)"]),
        (torch.empty(0, 0), torch.ones(0, 1), ["at least one"]),
    ],
)
def test_bad_kernels_and_values_get_one_clear_line(kernel, v0, words):
    with pytest.raises(InputError) as caught:
        simulate(kernel, v0, P, 3)
    assert all(word in str(caught.value) for word in words)
