"""The attention matrices of a model on real inputs, and where their eigenvalues lie."""
# B images, H heads, N tokens, L layers

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pidformer import ranks
from pidformer.analysis.inspection import AttentionCall, Model, check_inputs, visit_attention
from pidformer.analysis.similarity import Advance
from pidformer.errors import InputError

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
NEGATIVE = -1e-6
"""Real parts above this count as zero: attention of low rank has many eigenvalues there."""


def attention_matrices(
    model: Model, images: Tensor, *, dtype: torch.dtype = torch.float32
) -> Iterator[Tensor]:
    """A = softmax(q k^T / sqrt(d) + mask) of each layer in turn, (B, H, N, N).

    The model runs once and its queries and keys are kept; each matrix is made when it is asked for,
    in `dtype`. A model whose attention cannot be read is refused at once.
    """
    calls: list[AttentionCall] = []
    visit_attention(model, images, calls.append)

    def matrices() -> Iterator[Tensor]:
        while calls:
            yield calls.pop(0).matrix(dtype)

    return matrices()


def eigenvalues(matrices: Tensor) -> Tensor:
    """Eigenvalues (..., N), complex128, of (..., N, N); of triangular ones, the diagonal.

    On the CPU, wherever the matrices are: many small problems without symmetry. MKL gives up on
    uniform ones of some sizes (65 tokens), which is what collapse ends in; NumPy's LAPACK does not.
    """
    matrices = matrices.double().cpu()
    check_finite(matrices)
    if not bool(matrices.triu(1).any()):  # causal attention
        return matrices.diagonal(dim1=-2, dim2=-1).to(torch.complex128)
    try:
        return torch.linalg.eigvals(matrices)
    except torch.linalg.LinAlgError:
        found = np.linalg.eigvals(matrices.detach().numpy())
        return torch.from_numpy(found).to(torch.complex128)


def check_finite(rows: Tensor) -> None:
    """Refuse attention, or products with it, of tokens that attend nowhere or are not numbers."""
    if not bool(rows.isfinite().all()):
        raise InputError(
            "attention has rows that are not finite; leave padding out of the inputs, and check "
            "the model's weights"
        )


@dataclass(frozen=True, kw_only=True)
class SpectrumSummary:
    """Where a set of attention eigenvalues kappa lies."""

    min_real: float
    max_imag: float
    """Largest |Im kappa|."""
    quantiles: dict[float, float]
    """Of Re kappa, over all eigenvalues."""
    share_negative: float
    """Share with Re kappa < 0."""
    unit_error: float
    """Distance from 1 of the eigenvalue that should be 1, in the worst matrix: rounding."""
    second: float
    """Largest |kappa| after the eigenvalue 1: how slowly attention alone mixes the tokens."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for records."""
        quantiles = {f"{share:g}": value for share, value in self.quantiles.items()}
        return vars(self) | {"quantiles": quantiles}


@dataclass(frozen=True, kw_only=True)
class AttentionSpectrum:
    """Eigenvalues of every attention matrix of a model on a sample of images."""

    kappas: tuple[Tensor, ...]
    """For each layer (B, H, N), complex128."""

    @property
    def images(self) -> int:
        return len(self.kappas[0])

    @property
    def all(self) -> Tensor:
        """Every eigenvalue of every layer, flat."""
        return torch.cat([layer.flatten() for layer in self.kappas])

    def summary(self, layer: int | None = None, head: int | None = None) -> SpectrumSummary:
        """The summary of all layers, of one layer (from 0), or of one of its heads."""
        if layer is None:
            chosen = list(self.kappas)
        else:
            chosen = [self.kappas[layer] if head is None else self.kappas[layer][:, [head]]]
        flat = torch.cat([part.flatten() for part in chosen])
        marked = [split_unit(part) for part in chosen]
        reals = flat.real.numpy()
        return SpectrumSummary(
            min_real=float(reals.min()),
            max_imag=float(flat.imag.abs().max()),
            quantiles=dict(zip(QUANTILES, np.quantile(reals, QUANTILES).tolist(), strict=True)),
            share_negative=float((reals < NEGATIVE).mean()),
            unit_error=max(float(distance.max()) for distance, _ in marked),
            second=max(float(others.max()) for _, others in marked),
        )


def split_unit(kappas: Tensor) -> tuple[Tensor, Tensor]:
    """The distance from 1 of the eigenvalue that should be 1, and the moduli of the others."""
    distance, place = (kappas - 1).abs().min(-1, keepdim=True)
    return distance, kappas.abs().scatter(-1, place, 0.0)


def attention_spectrum(
    model: Model, images: Tensor, *, batch_size: int = 16, on_progress: Advance | None = None
) -> AttentionSpectrum:
    """Eigenvalues of every head's attention matrix at every layer, on each image.

    In float64, `batch_size` images and one layer at a time. A matrix of N tokens costs N^3: 20 to
    40 ms for 197 tokens on one core.
    """
    check_inputs(model, images, batch_size)

    def layers(part: Tensor, _: int) -> list[Tensor]:
        matrices = attention_matrices(model, part, dtype=torch.float64)
        found = [eigenvalues(layer) for layer in matrices]
        if on_progress is not None:
            on_progress(len(part))
        return found

    found = ranks.spread(images.split(batch_size), layers)
    return AttentionSpectrum(kappas=tuple(torch.cat(layer) for layer in zip(*found, strict=True)))
