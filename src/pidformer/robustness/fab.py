"""FAB (Croce & Hein 2020): the nearest misclassified point, one linearised boundary at a time."""
# B images of D numbers

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pidformer.errors import InputError
from pidformer.robustness.attack import (
    Attack,
    Bounds,
    ascent,
    check_finite,
    check_steps,
    is_right,
    likely_class,
    on_survivors,
)
from pidformer.robustness.draws import Draws
from pidformer.robustness.geometry import Norm, check_ball, length, onto_plane
from pidformer.robustness.losses import logit_difference
from pidformer.robustness.threat import Model


@dataclass(frozen=True, kw_only=True, repr=False)
class FAB(Attack):
    """Towards each of the `targets` most likely wrong classes t in turn, from the image x_0:

        plane   z_t - z_y = 0 linearised at x,
        d, d_0  the shortest steps from x and from x_0 onto it inside the box,
        x <- (1 - a) (x + eta d) + a (x_0 + eta d_0),   a = min(|d| / (|d| + |d_0|), 0.1),

    and wherever x is misclassified it is drawn back to x_0 + beta (x - x_0). An image is broken,
    and done, once a misclassified point lies within `eps`; the others come back unchanged. Nothing
    is drawn.
    """

    eps: float = 3 / 255
    norm: Norm = "Linf"
    steps: int = 100
    targets: int = 9
    eta: float = 1.05
    beta: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ball(self.eps, self.norm)
        check_steps(steps=self.steps, targets=self.targets)
        if not (self.eta >= 1 and 0 < self.beta < 1):
            raise InputError(
                f"eta must be at least 1 and beta in (0, 1), got {self.eta:g} and {self.beta:g}"
            )

    def perturb(
        self, model: Model, images: Tensor, labels: Tensor, draws: Draws, bounds: Bounds
    ) -> Tensor:
        """Each target on the images that the targets before did not break."""
        runs = [partial(self._run, model, bounds, place) for place in range(self.targets)]
        return on_survivors(model, images, labels, draws, runs)

    def _run(
        self,
        model: Model,
        bounds: Bounds,
        place: int,
        images: Tensor,
        labels: Tensor,
        draws: Draws,
    ) -> Tensor:
        """One search; images that it does not break within the budget come back unchanged."""
        targets = likely_class(model, images, labels, place)
        if targets is None:
            return images
        result, x = images.clone(), images
        rows = torch.arange(len(images), device=images.device)
        for _ in range(self.steps):
            x = self._towards_boundary(model, bounds, images, x, labels, targets)
            alive = is_right(model, x, labels)
            is_near = length(x - images, self.norm)[:, 0, 0, 0] <= self.eps
            is_done = ~alive & is_near
            result[rows[is_done]] = x[is_done]
            # What is wrong but too far away goes back, to look for a nearer point.
            x = torch.where(alive[:, None, None, None], x, images + self.beta * (x - images))
            if bool(is_done.any()):
                rows, images, x = rows[~is_done], images[~is_done], x[~is_done]
                labels, targets = labels[~is_done], targets[~is_done]
                if not len(rows):
                    break
        return result

    def _towards_boundary(
        self,
        model: Model,
        bounds: Bounds,
        images: Tensor,
        x: Tensor,
        labels: Tensor,
        targets: Tensor,
    ) -> Tensor:
        _, gap, gradient = ascent(model, x, logit_difference(labels, targets))
        check_finite(gradient.isfinite())
        normal = gradient.flatten(1)
        offset = (normal * x.flatten(1)).sum(1) - gap.to(x.dtype)
        step = onto_plane(x.flatten(1), normal, offset, self.norm, bounds).view_as(x)
        step_0 = onto_plane(images.flatten(1), normal, offset, self.norm, bounds).view_as(x)
        near, near_0 = length(step, self.norm), length(step_0, self.norm)
        share = (near / (near + near_0).clamp(min=1e-12)).clamp(max=0.1)
        ahead, ahead_0 = x + self.eta * step, images + self.eta * step_0
        return ((1 - share) * ahead + share * ahead_0).clamp(*bounds)
