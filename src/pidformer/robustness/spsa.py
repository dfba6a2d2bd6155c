"""SPSA (Uesato et al. 2018): an attack that only asks the model for its logits."""
# B images of D numbers, S samples

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pidformer.errors import InputError, shortened
from pidformer.robustness.attack import (
    Attack,
    Bounds,
    check_finite,
    check_steps,
    is_right,
    logits_of,
)
from pidformer.robustness.draws import Draws, random_signs
from pidformer.robustness.losses import margin
from pidformer.robustness.threat import Model, check_budget

_BETAS, _TINY = (0.9, 0.999), 1e-8  # Adam's own


@dataclass(frozen=True, kw_only=True, repr=False)
class SPSA(Attack):
    """Adam with an estimated gradient of the margin m, on a perturbation d from U(-eps, eps):

        g = mean over S samples of (m(x + d + delta v) - m(x + d - delta v)) / (2 delta) v,
        v_i = +1 or -1 with equal chances,   d <- clip(Adam(d, -g, lr)).

    Each step asks the model about 2 `samples` points per image, `chunk` points at a time whatever
    the size of the batch; the answer does not depend on `chunk`. With `early_stop` an image rests
    at the first step that breaks it.

    `compat="cleverhans"` takes the differences at 2 x instead of x + d, as cleverhans 4.0 does by
    adding the image twice (its issue 1249): the slope of the model somewhere else, which may say
    little about the image. Only to compare with the paper's Table 1.
    """

    eps: float = 0.1
    steps: int = 20
    samples: int = 128
    delta: float = 0.01
    lr: float = 0.01
    chunk: int = 256
    early_stop: bool = False
    compat: Literal["cleverhans"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._read_budgets("delta", "lr")
        check_budget("eps", self.eps)
        check_budget("delta", self.delta)
        check_steps(steps=self.steps, samples=self.samples)
        if not (self.delta > 0 and self.lr > 0):
            raise InputError(f"delta and lr must be above 0, got {self.delta:g} and {self.lr:g}")
        if self.chunk < 2:
            raise InputError(f"chunk must be at least 2, one pair of points, got {self.chunk}")
        if self.compat not in (None, "cleverhans"):
            raise InputError(f"compat must be None or 'cleverhans', got {shortened(self.compat)}")

    def perturb(
        self, model: Model, images: Tensor, labels: Tensor, draws: Draws, bounds: Bounds
    ) -> Tensor:
        """The last step's images, or the first that is misclassified."""
        result = torch.empty_like(images)
        rows = torch.arange(len(images), device=images.device)
        low = (images - self.eps).clamp(min=bounds.low)
        high = (images + self.eps).clamp(max=bounds.high)
        start = (2 * draws.at(0).uniform(*images.shape[1:]) - 1).to(images.dtype)
        attacked = torch.clamp(images + self.eps * start, low, high)
        mean, square = torch.zeros_like(images), torch.zeros_like(images)
        for step in range(1, self.steps + 1):
            if self.early_stop:
                alive = is_right(model, attacked, labels)
                result[rows[~alive]] = attacked[~alive]
                rows, labels, draws = rows[alive], labels[alive], draws.of(alive)
                images, attacked = images[alive], attacked[alive]
                low, high = low[alive], high[alive]
                mean, square = mean[alive], square[alive]
                if not len(rows):
                    break
            centre = 2 * images if self.compat else attacked
            gradient = self.estimate(model, centre, labels, draws.at(step))
            check_finite(gradient.isfinite())
            mean = torch.lerp(mean, gradient, 1 - _BETAS[0])
            square = torch.lerp(square, gradient.square(), 1 - _BETAS[1])
            scale = (square / (1 - _BETAS[1] ** step)).sqrt() + _TINY
            move = self.lr * mean / (1 - _BETAS[0] ** step) / scale
            attacked = torch.clamp(attacked + move, low, high)
        result[rows] = attacked
        return result

    def estimate(self, model: Model, centre: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        """The estimated gradient of the margin at `centre`, in its shape."""
        keys = draws.keys(self.samples)  # (B S, 2)
        image = torch.arange(len(centre), device=centre.device).repeat_interleave(self.samples)
        total = torch.zeros_like(centre)
        pairs = self.chunk // 2
        for key, index in zip(keys.split(pairs), image.split(pairs), strict=True):
            direction = random_signs(key, centre[0].numel()).to(centre.dtype)
            direction = direction.view(-1, *centre.shape[1:])
            here, step = centre[index], self.delta * direction
            logits = logits_of(model, torch.cat([here + step, here - step]))
            ahead, behind = margin(labels[index].repeat(2))(logits).chunk(2)
            slope = ((ahead - behind) / (2 * self.delta)).to(centre.dtype)
            total.index_add_(0, index, slope[:, None, None, None] * direction)
        return total / self.samples
