"""The functionals behind attention: smoothing, fidelity, and Bregman iteration as PI control.

`weights` k (N, N) is any non-negative proximity matrix, W = k + k^T and L = diag(W 1) - W:

    J(v) = 1/2 sum_ij k_ij |v_i - v_j|^2        grad J = L v
    G(v) = strength/2 |v - reference|^2         E = J + G

The paper calls J a nonlocal total variation; being quadratic it is a Dirichlet energy.
"""

from typing import Any

import torch
from torch import Tensor

from pidformer.control.systems import as_square, as_values, identity
from pidformer.errors import InputError


def laplacian(weights: Any) -> Tensor:
    """L = diag(W 1) - W with W = k + k^T."""
    weights = as_square(weights, "weights")
    symmetric = weights + weights.T
    return torch.diag(symmetric.sum(-1)) - symmetric


def dirichlet_energy(v: Any, weights: Any) -> Tensor:
    """J(v) = 1/2 sum_ij k_ij |v_i - v_j|^2 = 1/2 tr(v^T L v)."""
    matrix = laplacian(weights)
    v = as_values(v, len(matrix))
    return 0.5 * (v * (matrix @ v)).sum()


def dirichlet_gradient(v: Any, weights: Any) -> Tensor:
    """grad J = L v."""
    matrix = laplacian(weights)
    return matrix @ as_values(v, len(matrix))


def fidelity_energy(v: Any, reference: Any, strength: float) -> Tensor:
    """G(v) = strength/2 |v - reference|^2."""
    v, reference = (torch.as_tensor(x, dtype=torch.float64) for x in (v, reference))
    return 0.5 * strength * (v - reference).square().sum()


def fidelity_gradient(v: Any, reference: Any, strength: float) -> Tensor:
    """grad G = strength (v - reference)."""
    v, reference = (torch.as_tensor(x, dtype=torch.float64) for x in (v, reference))
    return strength * (v - reference)


def energy(v: Any, weights: Any, reference: Any, strength: float) -> Tensor:
    """E(v) = J(v) + G(v)."""
    return dirichlet_energy(v, weights) + fidelity_energy(v, reference, strength)


def energy_gradient(v: Any, weights: Any, reference: Any, strength: float) -> Tensor:
    """grad E = L v + strength (v - reference)."""
    return dirichlet_gradient(v, weights) + fidelity_gradient(v, reference, strength)


def minimise_energy(weights: Any, reference: Any, strength: float) -> Tensor:
    """argmin E = strength (L + strength Id)^-1 reference: where P control settles."""
    if not strength > 0:
        raise InputError(
            f"strength must be > 0, got {strength}; without it E has no unique minimum"
        )
    matrix = laplacian(weights)
    reference = as_values(reference, len(matrix))
    system = matrix + strength * identity(matrix)
    return torch.linalg.solve(system, strength * reference)


def bregman(
    v: Any, weights: Any, reference: Any, *, strength: float, steps: int, exact: bool = True
) -> Tensor:
    """Bregman iteration for min J subject to v = reference, from `v`: (steps + 1, N, D).

        v_{l+1} = argmin J(v) + strength/2 |v - reference - a_l|^2,   a_l = e_1 + ... + e_l

    with e_m = reference - v_m. `exact` solves each problem: v_n = (Id - (L (L + s)^-1)^n) F with
    s = strength. Otherwise each problem gets one gradient step of length one, v - L v + s e_l +
    s a_l, which is the Euler step of PI control with p = i = s and K = Id - L. The limit is the
    reference, not argmin E. Assumes a zero subgradient at the start, as Lemma 3 silently does.
    """
    matrix = laplacian(weights)
    value = as_values(v, len(matrix))
    reference = as_values(reference, len(matrix))
    accumulated = torch.zeros_like(value)
    values = [value]
    for _ in range(steps):
        if exact:
            value = minimise_energy(weights, reference + accumulated, strength)
        else:
            error = reference - value
            value = value - matrix @ value + strength * (error + accumulated)
        accumulated = accumulated + reference - value
        values.append(value)
    return torch.stack(values)
