"""Noise that knows nothing of the model."""

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from pidformer.errors import InputError, shortened
from pidformer.robustness.attack import Attack, Bounds
from pidformer.robustness.draws import Draws
from pidformer.robustness.threat import Model, check_budget

Kind = Literal["uniform", "gaussian"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Noise(Attack):
    """clip(x + eps n) with n from U(-1, 1) or N(0, 1), one number an entry.

    The paper's is uniform with eps 0.3. Gaussian noise has the standard deviation `eps` and no
    bound but that of the pixels.
    """

    eps: float = 0.3
    kind: Kind = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget("eps", self.eps)
        if self.kind not in get_args(Kind):
            raise InputError(f"kind must be uniform or gaussian, got {shortened(self.kind)}")

    def perturb(
        self, model: Model, images: Tensor, labels: Tensor, draws: Draws, bounds: Bounds
    ) -> Tensor:
        """The images and their noise."""
        shape = images.shape[1:]
        drawn = draws.normal(*shape) if self.kind == "gaussian" else 2 * draws.uniform(*shape) - 1
        return (images + self.eps * drawn.to(images.dtype)).clamp(*bounds)
