import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from pidformer.control import PIDGains, closed_loop, poles, simulate
from tests.kernels import causal_kernel, softmax_kernel, values

GAINS = [
    PIDGains(p=0.6, i=0.3, d=0.1, beta=0.4),
    PIDGains(p=0.8, i=0.5, d=0.05, beta=0.1),
    PIDGains(p=0.5, i=0.2),
]


def distance(a, b):
    """The largest distance in the best matching of two sets of complex numbers."""
    cost = np.abs(np.asarray(a)[:, None] - np.asarray(b)[None])
    return cost[linear_sum_assignment(cost)].max()


@pytest.mark.parametrize("gains", GAINS, ids=repr)
@pytest.mark.parametrize("kernel", [softmax_kernel(6, sharpness=3.0), causal_kernel(5)])
def test_its_eigenvalues_are_the_poles(kernel, gains):
    found = torch.linalg.eigvals(closed_loop(kernel, gains))
    expected = poles(torch.linalg.eigvals(kernel), gains).flatten()
    assert distance(found, expected) < 1e-5  # causal kernels have nearly defective loops


def test_without_integral_or_derivative_the_state_is_smaller():
    kernel = softmax_kernel(6, sharpness=2.0)
    p, pd = PIDGains(p=0.4), PIDGains(p=0.4, d=0.2)
    plain = closed_loop(kernel, p, has_integral=False, has_previous=False)
    torch.testing.assert_close(plain, kernel - 0.4 * torch.eye(6, dtype=torch.float64))
    found = torch.linalg.eigvals(closed_loop(kernel, pd, has_integral=False))
    expected = poles(torch.linalg.eigvals(kernel), pd).flatten()
    assert found.shape == (12,)
    nonzero = expected[expected.abs() > 1e-9]  # the third pole stands for the missing integral
    assert distance(found, nonzero) < 1e-9


@pytest.mark.parametrize("gains", GAINS, ids=repr)
def test_it_moves_the_difference_of_two_trajectories(gains):
    """Two starts with the same reference are not possible; compare steps after the first."""
    kernel = softmax_kernel(6, sharpness=2.0)
    v0 = values(6)
    run = simulate(kernel, v0, gains, 8)
    reference = gains.beta * v0
    w = run - reference
    error_sum = torch.zeros_like(v0)  # S_{l-1}, from layer 1 on
    forcing = torch.cat([(kernel - torch.eye(6)) @ reference, torch.zeros(12, 5)])
    step = closed_loop(kernel, gains)
    for depth in range(1, 8):
        state = torch.cat([w[depth], error_sum, w[depth - 1]])
        error_sum = error_sum - w[depth]
        after = step @ state + forcing
        torch.testing.assert_close(after, torch.cat([w[depth + 1], error_sum, w[depth]]))


def test_gains_may_differ_by_head():
    kernels = torch.stack([softmax_kernel(4, seed) for seed in range(2)])
    p, i, d = (torch.tensor(x, dtype=torch.float64).view(2, 1, 1) for x in ((0.1, 0.4),) * 3)
    from pidformer.control import GainTensors

    together = closed_loop(kernels, GainTensors(p, i, d, 1.0))
    for head, gain in enumerate((0.1, 0.4)):
        alone = closed_loop(kernels[head], PIDGains(p=gain, i=gain, d=gain))
        torch.testing.assert_close(together[head], alone)
