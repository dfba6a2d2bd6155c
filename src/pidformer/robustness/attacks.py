"""White-box attacks in the L-infinity ball: untargeted, on true labels, in pixel space.

Both climb the cross entropy L of the true label y by its sign gradient and stay in the ball:

    x_0 = x (FGSM) or x + eps U(-1, 1) (PGD),
    x_{k+1} = clip(x_k + step sign dL(f(x_k), y)/dx_k),   clip onto |x' - x| <= eps and [0, 1].
"""
# B images

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from pidformer.errors import InputError
from pidformer.robustness.attack import (
    Attack,
    Bounds,
    ascent,
    check_finite,
    check_steps,
    confirm,
    judge,
    logits_of,
)
from pidformer.robustness.draws import Draws
from pidformer.robustness.losses import cross_entropy
from pidformer.robustness.threat import Model, check_budget


@dataclass(frozen=True, kw_only=True, repr=False)
class FGSM(Attack):
    """Fast gradient sign method: one step of PGD, as long as the budget, from the image itself.

    Nothing is drawn, so `seed` and `offset` change nothing.
    """

    eps: float = 3 / 255

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget("eps", self.eps)

    def perturb(
        self, model: Model, images: Tensor, labels: Tensor, draws: Draws, bounds: Bounds
    ) -> Tensor:
        """One step of `eps`, which cannot leave the ball."""
        _, _, gradient = ascent(model, images, cross_entropy(labels))
        check_finite(gradient.isfinite())
        return gradient.sign_().mul_(self.eps).add_(images).clamp_(*bounds)


@dataclass(frozen=True, kw_only=True, repr=False)
class PGD(Attack):
    """Projected gradient descent: `steps` steps of `step_size`, from a random place in the ball.

    Of several `restarts` each image keeps the one that is misclassified, and among those the one
    with the largest loss. With `early_stop` an image rests at the first place of its path where it
    is misclassified: faster, and never weaker, since a path may also lead back to the right class.
    Without a `step_size` the steps are 2.5 eps / steps long, so that together they can cross the
    ball. The paper's (eps 3/255, 20 steps of 0.15/255) only just reach its edge: suite `paper`.
    """

    eps: float = 3 / 255
    steps: int = 20
    step_size: float = None  # type: ignore[assignment]  # 2.5 eps / steps
    random_start: bool = True
    restarts: int = 1
    early_stop: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget("eps", self.eps)
        check_steps(steps=self.steps, restarts=self.restarts)
        if self.step_size is None:
            crossing = round(2.5 * 255 * self.eps / self.steps, 6) / 255
            object.__setattr__(self, "step_size", crossing)
        self._read_budgets("step_size")
        check_budget("step_size", self.step_size)
        if self.restarts > 1 and not self.random_start:
            raise InputError("restarts > 1 needs random_start=True: all would end alike")
        if self.steps * self.step_size < self.eps * (1 - 1e-6):
            warnings.warn(
                f"{self} is weak: its steps reach {self.steps * self.step_size:.3g}, not the edge "
                "of the ball; raise steps or step_size",
                stacklevel=3,
            )

    def perturb(
        self, model: Model, images: Tensor, labels: Tensor, draws: Draws, bounds: Bounds
    ) -> Tensor:
        """The best of the restarts."""
        best = self._attempt(model, images, labels, draws.at(0), bounds)
        if self.restarts == 1:
            return best
        best_score = _score(model, best, labels)
        for restart in range(1, self.restarts):
            attacked = self._attempt(model, images, labels, draws.at(restart), bounds)
            score = _score(model, attacked, labels)
            is_better = score > best_score
            best = torch.where(is_better[:, None, None, None], attacked, best)
            best_score = torch.where(is_better, score, best_score)
        return best

    def _attempt(
        self, model: Model, images: Tensor, labels: Tensor, draws: Draws, bounds: Bounds
    ) -> Tensor:
        start = images
        if self.random_start:
            start = images + self.eps * (2 * draws.uniform(*images.shape[1:]) - 1).to(images.dtype)
        low, high = _ball(images, self.eps, bounds)
        return _climb(
            model, labels, start, low, high, self.step_size, self.steps, early_stop=self.early_stop
        )


def _ball(images: Tensor, eps: float, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """The lowest and the highest value of each entry."""
    return (images - eps).clamp(min=bounds.low), (images + eps).clamp(max=bounds.high)


def _climb(
    model: Model,
    labels: Tensor,
    start: Tensor,
    low: Tensor,
    high: Tensor,
    step_size: float,
    steps: int,
    *,
    early_stop: bool,
) -> Tensor:
    """`steps` sign-gradient steps up the loss, between `low` and `high`."""
    attacked = torch.clamp(start, low, high)
    result = None  # made when the first image comes to rest
    rows = torch.arange(len(labels), device=labels.device)
    is_finite = torch.ones((), dtype=torch.bool, device=labels.device)
    for _ in range(steps):
        logits, _, gradient = ascent(model, attacked, cross_entropy(labels))
        is_finite &= gradient.isfinite().all()  # looked at once, at the end: a device need not wait
        if early_stop:
            alive = confirm(model, attacked, labels, logits.argmax(-1) == labels)
            if not bool(alive.all()):
                result = torch.empty_like(attacked) if result is None else result
                result[rows[~alive]] = attacked[~alive]
                rows, labels, attacked = rows[alive], labels[alive], attacked[alive]
                low, high, gradient = low[alive], high[alive], gradient[alive]
                if not len(rows):
                    break
        attacked = torch.clamp(gradient.sign_().mul_(step_size).add_(attacked), low, high)
    check_finite(is_finite)
    if result is None:
        return attacked
    result[rows] = attacked
    return result


def _score(model: Model, images: Tensor, labels: Tensor) -> Tensor:
    """How well an attack did, (B,): 1 if misclassified, minus the probability of the true class."""
    logits = logits_of(judge(model), images)
    probability = logits.double().softmax(-1).gather(-1, labels[:, None])[:, 0]
    return (logits.argmax(-1) != labels).double() - probability
