"""Row-stochastic matrices to test on."""

import torch
from torch import Tensor


def softmax_kernel(tokens: int, seed: int = 0, sharpness: float = 1.0) -> Tensor:
    """softmax(q k^T sharpness / sqrt(d)) of random q and k, float64: complex spectrum."""
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, tokens, 8, generator=generator, dtype=torch.float64)
    return (sharpness * q @ k.T / 8**0.5).softmax(-1)


def causal_kernel(tokens: int, seed: int = 0) -> Tensor:
    """A lower-triangular attention matrix: the spectrum is its diagonal, real in (0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(tokens, tokens, generator=generator, dtype=torch.float64)
    return scores.masked_fill(~torch.ones(tokens, tokens).tril().bool(), -torch.inf).softmax(-1)


def symmetric_kernel(tokens: int, seed: int = 0) -> Tensor:
    """A symmetric doubly stochastic matrix, by Sinkhorn's iteration."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, 3, generator=generator, dtype=torch.float64)
    matrix = (x @ x.T).exp()
    for _ in range(2000):
        scale = matrix.sum(-1).rsqrt()
        matrix = scale[:, None] * matrix * scale
    return matrix


def values(tokens: int, width: int = 5, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tokens, width, generator=generator, dtype=torch.float64)
