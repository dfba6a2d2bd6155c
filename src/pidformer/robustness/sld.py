"""Sparse descent in the L1 ball (Tramer & Boneh 2019), as cleverhans does it."""
# B images of D numbers

from dataclasses import dataclass

import torch
from torch import Tensor

from pidformer.errors import InputError
from pidformer.robustness.attack import Attack, Bounds, ascent, check_finite, check_steps
from pidformer.robustness.draws import Draws
from pidformer.robustness.losses import cross_entropy
from pidformer.robustness.threat import Model, check_distance


@dataclass(frozen=True, kw_only=True, repr=False)
class SLD(Attack):
    """`steps` steps of L1 length `step_size` along the largest entries of the gradient g:

        S = {i : |g_i| >= the int(sparsity D)-th smallest of |g|},   d_i = sign(g_i) [i in S] / |S|,
        x <- clip(x_0 + rescale(clip(x + step_size d) - x_0)),

    where a perturbation with an L1 norm above `eps` is rescaled to `eps`. That is not the nearest
    point of the ball: large entries shrink as much as small ones. The attack is that of the paper's
    Table 1; it starts at the image and draws nothing.
    """

    eps: float = 10.0
    steps: int = 20
    step_size: float = 1.0
    sparsity: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        self._read_budgets("step_size")
        check_distance("eps", self.eps)
        check_distance("step_size", self.step_size)
        check_steps(steps=self.steps)
        if not 0 < self.sparsity < 1:
            raise InputError(f"sparsity must be in (0, 1), got {self.sparsity:g}")

    def perturb(
        self, model: Model, images: Tensor, labels: Tensor, draws: Draws, bounds: Bounds
    ) -> Tensor:
        """The last step's images."""
        attacked = images
        is_finite = torch.ones((), dtype=torch.bool, device=images.device)
        for _ in range(self.steps):
            _, _, gradient = ascent(model, attacked, cross_entropy(labels))
            is_finite &= gradient.isfinite().all()
            moved = attacked + self.step_size * _largest(gradient, self.sparsity)
            change = moved.clamp(*bounds) - images
            length = change.abs().sum((1, 2, 3), keepdim=True)
            change = change * (self.eps / length.clamp(min=self.eps))
            attacked = (images + change).clamp(*bounds)
        check_finite(is_finite)
        return attacked


def _largest(gradient: Tensor, sparsity: float) -> Tensor:
    """The signs of the largest entries, 0 elsewhere, divided by their number."""
    size = gradient.flatten(1).abs()  # (B, D)
    rank = max(int(sparsity * size.shape[1]), 1)
    is_kept = size >= size.kthvalue(rank, dim=1, keepdim=True).values
    step = gradient.flatten(1).sign() * is_kept / is_kept.sum(1, keepdim=True)
    return step.view_as(gradient)
