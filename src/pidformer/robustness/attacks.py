"""The attacks of the paper's Table 1, untargeted, on true labels; and noise.

FGSM and PGD climb the cross entropy L of the true label y by its sign gradient, in the ball:

    x_0 = x (FGSM) or x + eps U(-1, 1) (PGD),
    x_{k+1} = clip(x_k + step sign dL(f(x_k), y)/dx_k),   clip onto |x' - x| <= eps and [0, 1].
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from pidformer.data.arguments import check_counts
from pidformer.errors import InputError, shortened
from pidformer.models.pixel import check_scale
from pidformer.robustness.attack import Attack, AttackBatch, under_attack
from pidformer.robustness.balls import UNBOUNDED
from pidformer.robustness.losses import cross_entropy
from pidformer.robustness.queries import ascent, check_path, confirm, judge, logits_of
from pidformer.robustness.threat import (
    Draws,
    Model,
    check_batch,
    check_budget,
    check_distance,
    check_span,
)

# B images of D numbers


@dataclass(frozen=True, kw_only=True, repr=False)
class FGSM(Attack):
    """Fast gradient sign method: one step of PGD, as long as the budget, from the image itself.

    Nothing is drawn, so `seed` and `offset` change nothing.
    """

    eps: float = 3 / 255

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget("eps", self.eps)

    def perturb(self, model: Model, batch: AttackBatch) -> Tensor:
        """One step of `eps`, which cannot leave the ball."""
        _, _, gradient = ascent(model, batch.images, cross_entropy, batch.labels)
        check_path([gradient.aminmax()])
        return gradient.sign_().mul_(self.eps).add_(batch.images).clamp_(*batch.bounds)


@dataclass(frozen=True, kw_only=True, repr=False)
class PGD(Attack):
    """Projected gradient descent: `steps` steps of `step_size`, from a random place in the ball.

    Of several `restarts` each image keeps the one that is misclassified, and among those the one
    with the largest loss. With `early_stop` an image rests at the first place of its path where it
    is misclassified: faster, and never weaker, since a path may also lead back to the right class.
    Without a `step_size` the steps are 2.5 eps / steps long (1 at most), so that together they can
    cross the ball. The paper's (eps 3/255, 20 steps of 0.15/255) only just reach its edge: suite
    `paper`.
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
        check_counts(steps=self.steps, restarts=self.restarts)
        if self.step_size is None:
            crossing = min(round(2.5 * 255 * self.eps / self.steps, 6), 255) / 255
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

    def perturb(self, model: Model, batch: AttackBatch) -> Tensor:
        """The best of the restarts."""
        best = self._attempt(model, batch, 0)
        if self.restarts == 1:
            return best
        best_score = _score(model, best, batch.labels)
        for restart in range(1, self.restarts):
            attacked = self._attempt(model, batch, restart)
            score = _score(model, attacked, batch.labels)
            is_better = score > best_score
            best = torch.where(is_better[:, None, None, None], attacked, best)
            best_score = torch.where(is_better, score, best_score)
        return best

    def _attempt(self, model: Model, batch: AttackBatch, restart: int) -> Tensor:
        """`steps` sign-gradient steps up the loss, inside ball and bounds."""
        images, labels, draws, bounds = batch
        attacked = images
        if self.random_start:
            drawn = 2 * draws.at(restart).uniform(*images.shape[1:]) - 1
            attacked = images + self.eps * drawn.to(images.dtype)
        low = (images - self.eps).clamp(min=bounds.low)
        high = (images + self.eps).clamp(max=bounds.high)
        attacked = torch.clamp(attacked, low, high)
        result = None  # made when the first image comes to rest
        rows = torch.arange(len(labels), device=labels.device)
        ranges = []
        for _ in range(self.steps):
            logits, _, gradient = ascent(model, attacked, cross_entropy, labels)
            ranges.append(gradient.aminmax())  # looked at once, at the end: no device waits
            if self.early_stop:
                alive = confirm(model, attacked, labels, logits.argmax(-1) == labels)
                if not bool(alive.all()):
                    result = torch.empty_like(attacked) if result is None else result
                    result[rows[~alive]] = attacked[~alive]
                    rows, labels, attacked = rows[alive], labels[alive], attacked[alive]
                    low, high, gradient = low[alive], high[alive], gradient[alive]
                    if not len(rows):
                        break
            attacked = torch.clamp(gradient.sign_().mul_(self.step_size).add_(attacked), low, high)
        check_path(ranges)
        if result is None:
            return attacked
        result[rows] = attacked
        return result


def _score(model: Model, images: Tensor, labels: Tensor) -> Tensor:
    """How well an attack did, (B,): 1 if misclassified, minus the probability of the true class."""
    logits = logits_of(judge(model), images)
    probability = logits.double().softmax(-1).gather(-1, labels[:, None])[:, 0]
    return (logits.argmax(-1) != labels).double() - probability


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
        check_counts(steps=self.steps)
        if not 0 < self.sparsity < 1:
            raise InputError(f"sparsity must be in (0, 1), got {self.sparsity:g}")

    def perturb(self, model: Model, batch: AttackBatch) -> Tensor:
        """The last step's images."""
        images, labels, _, bounds = batch
        attacked = images
        ranges = []
        for _ in range(self.steps):
            _, _, gradient = ascent(model, attacked, cross_entropy, labels)
            ranges.append(gradient.aminmax())
            moved = attacked + self.step_size * _largest(gradient, self.sparsity)
            change = moved.clamp(*bounds) - images
            length = change.abs().sum((1, 2, 3), keepdim=True)
            change = change * (self.eps / length.clamp(min=self.eps))
            attacked = (images + change).clamp(*bounds)
        check_path(ranges)
        return attacked


def _largest(gradient: Tensor, sparsity: float) -> Tensor:
    """The signs of the largest entries, 0 elsewhere, divided by their number."""
    size = gradient.flatten(1).abs()  # (B, D)
    rank = max(int(sparsity * size.shape[1]), 1)
    is_kept = size >= size.kthvalue(rank, dim=1, keepdim=True).values
    step = gradient.flatten(1).sign() * is_kept / is_kept.sum(1, keepdim=True)
    return step.view_as(gradient)


Kind = Literal["uniform", "gaussian"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Noise(Attack):
    """clip(x + eps n) with n from U(-1, 1) or N(0, 1), one number per entry.

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

    def perturb(self, model: Model, batch: AttackBatch) -> Tensor:
        """The images and their noise."""
        images, _, draws, bounds = batch
        shape = images.shape[1:]
        drawn = draws.normal(*shape) if self.kind == "gaussian" else 2 * draws.uniform(*shape) - 1
        return (images + self.eps * drawn.to(images.dtype)).clamp(*bounds)


@dataclass(frozen=True)
class Normalized:
    """`threat` on z = (x - mean) / std, its budget in units of z, without the bounds of a pixel.

    Images go in as pixels in [0, 1] and come out as pixels, z std + mean, but may leave [0, 1]. In
    pixels the budget is eps std: 3/255 is about 0.67/255 with the numbers of ImageNet. So this is
    a much weaker threat than `threat` itself, and no picture could show it; the numbers of the
    paper's Table 1 imply it (docs/attacks.md). `mean` and `std` are those of the model.
    """

    threat: Attack
    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        if not isinstance(self.threat, Attack):
            raise InputError(f"only an attack has a domain to change, got {self.threat!r}")
        check_scale(self.mean, self.std)
        object.__setattr__(self, "mean", tuple(self.mean))
        object.__setattr__(self, "std", tuple(self.std))

    def __call__(
        self, model: Model, images: Tensor, labels: Tensor, *, seed: int = 0, offset: int = 0
    ) -> Tensor:
        """The attacked images, as pixels that may lie outside [0, 1]."""
        check_batch(images, labels)
        check_span(images.aminmax() if images.numel() else ())
        if images.shape[1] != len(self.mean):
            raise InputError(f"images must have {len(self.mean)} channels, got {images.shape[1]}")
        if not self.threat.eps:
            return images.clone()
        with under_attack(model), torch.inference_mode(False):
            scale = torch.tensor([self.mean, self.std], dtype=images.dtype, device=images.device)
            mean, std = scale[:, :, None, None]
            draws = Draws.of_batch(images, seed, offset)
            batch = AttackBatch((images - mean) / std, labels, draws, UNBOUNDED)
            return self.threat.within(lambda z: model(z * std + mean), batch) * std + mean
