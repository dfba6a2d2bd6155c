"""White-box attacks in the L-infinity ball: untargeted, on true labels, in pixel space.

Both climb the cross entropy L of the true label y by its sign gradient and stay in the ball:

    x_0 = x (FGSM) or x + eps U(-1, 1) (PGD),
    x_{k+1} = clip(x_k + step sign dL(f(x_k), y)/dx_k),   clip onto |x' - x| <= eps and [0, 1].
"""
# B images

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pidformer.data.noise import uniform_noise
from pidformer.errors import InputError
from pidformer.nn import evaluating
from pidformer.robustness.threat import Model, check_budget, check_images, pixel_text


@dataclass(frozen=True, kw_only=True, repr=False)
class FGSM:
    """Fast gradient sign method: one step of PGD, as long as the budget, from the image itself."""

    eps: float = 3 / 255

    def __post_init__(self) -> None:
        check_budget("eps", self.eps)

    def __call__(
        self, model: Model, images: Tensor, labels: Tensor, *, seed: int = 0, offset: int = 0
    ) -> Tensor:
        """The attacked images; nothing is drawn, so `seed` and `offset` change nothing."""
        check_images(images, labels)
        return _climb(model, images, labels, images, self.eps, self.eps, 1)

    def __repr__(self) -> str:
        return f"FGSM(eps={pixel_text(self.eps)})"


@dataclass(frozen=True, kw_only=True, repr=False)
class PGD:
    """Projected gradient descent: `steps` steps of `step_size`, from a random place in the ball.

    Of several `restarts` each image keeps the one that is misclassified, and among those the one
    with the largest loss. The defaults are those of the paper, whose steps just reach the edge of
    the ball; with a larger `eps`, choose a larger `step_size` (2.5 eps / steps is common).
    """

    eps: float = 3 / 255
    steps: int = 20
    step_size: float = 0.15 / 255
    random_start: bool = True
    restarts: int = 1

    def __post_init__(self) -> None:
        check_budget("eps", self.eps)
        check_budget("step_size", self.step_size)
        if self.steps < 1 or self.restarts < 1:
            raise InputError(
                f"steps and restarts must be at least 1, got {self.steps} and {self.restarts}"
            )
        if self.restarts > 1 and not self.random_start:
            raise InputError("restarts > 1 needs random_start=True: all would end alike")
        if self.steps * self.step_size < self.eps * (1 - 1e-6):
            warnings.warn(
                f"{self} is weak: its steps reach {self.steps * self.step_size:.3g}, not the edge "
                "of the ball; raise steps or step_size",
                stacklevel=3,
            )

    def __call__(
        self, model: Model, images: Tensor, labels: Tensor, *, seed: int = 0, offset: int = 0
    ) -> Tensor:
        """The attacked images. The start of row i is drawn from (seed, offset + i) alone."""
        check_images(images, labels)
        best = self._attempt(model, images, labels, seed, offset, 0)
        if self.restarts == 1 or not self.eps:
            return best
        best_score = _score(model, best, labels)
        for restart in range(1, self.restarts):
            attacked = self._attempt(model, images, labels, seed, offset, restart)
            score = _score(model, attacked, labels)
            is_better = score > best_score
            best = torch.where(is_better[:, None, None, None], attacked, best)
            best_score = torch.where(is_better, score, best_score)
        return best

    def _attempt(
        self, model: Model, images: Tensor, labels: Tensor, seed: int, offset: int, restart: int
    ) -> Tensor:
        start = images
        if self.random_start:
            start = images + self.eps * _uniform_start(images, seed, offset, restart)
        return _climb(model, images, labels, start, self.eps, self.step_size, self.steps)

    def __repr__(self) -> str:
        return (
            f"PGD(eps={pixel_text(self.eps)}, steps={self.steps}, "
            f"step_size={pixel_text(self.step_size)}, random_start={self.random_start}, "
            f"restarts={self.restarts})"
        )


def _climb(
    model: Model,
    images: Tensor,
    labels: Tensor,
    start: Tensor,
    eps: float,
    step_size: float,
    steps: int,
) -> Tensor:
    """`steps` sign-gradient steps up the loss, inside the ball around `images` and in [0, 1]."""
    if not eps or not len(images):
        return images.clone()
    # A caller in no_grad or inference mode wants no graph of its own, but the attack needs one.
    with evaluating(model), torch.inference_mode(False), torch.enable_grad():
        images, labels = images.detach().clone(), labels.clone()
        low, high = (images - eps).clamp(min=0), (images + eps).clamp(max=1)
        attacked = torch.clamp(start.detach().clone(), low, high)
        is_finite = torch.ones((), dtype=torch.bool, device=images.device)
        for _ in range(steps):
            attacked.requires_grad_()
            logits = model(attacked)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            # A sum, not a mean: the gradient of an image does not know the size of its batch.
            loss = F.cross_entropy(logits, labels, reduction="sum")
            if not loss.requires_grad:
                raise InputError("the model's output has no gradient; does it detach or no_grad?")
            (gradient,) = torch.autograd.grad(loss, attacked)
            is_finite &= gradient.isfinite().all()  # sign(NaN) is 0: no attack, and no error
            attacked = torch.clamp(attacked.detach() + step_size * gradient.sign(), low, high)
    if not bool(is_finite):
        raise InputError("the gradient of the model's loss is not finite; check its logits")
    return attacked


def _score(model: Model, images: Tensor, labels: Tensor) -> Tensor:
    """How well an attack did, (B,): 1 if misclassified, less the probability of the true class."""
    with evaluating(model), torch.no_grad():
        logits = model(images)
    probability = logits.double().softmax(-1).gather(-1, labels[:, None])[:, 0]
    return (logits.argmax(-1) != labels).double() - probability


def _uniform_start(images: Tensor, seed: int, offset: int, restart: int) -> Tensor:
    """U(-1, 1) in the shape of `images`; row i depends on (seed, restart, offset + i) alone."""
    if seed < 0 or offset < 0:
        raise InputError(f"seed and offset must not be negative, got {seed} and {offset}")
    word = int(np.random.SeedSequence((seed, restart)).generate_state(1)[0])
    rows = torch.arange(offset, offset + len(images), device=images.device)
    keys = torch.stack([torch.full_like(rows, word), rows], dim=1)
    drawn = 2 * uniform_noise(keys, images[0].numel()) - 1
    return drawn.view_as(images).to(images.dtype)
