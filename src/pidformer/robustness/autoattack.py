"""Auto-PGD, FAB and AutoAttack (Croce & Hein 2020): attacks without a knob to turn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pidformer.data.arguments import check_counts
from pidformer.errors import InputError, shortened
from pidformer.robustness.attack import Attack, AttackBatch, BallAttack, likely_class, on_survivors
from pidformer.robustness.balls import Bounds, into_ball, length, onto_plane, random_start, steepest
from pidformer.robustness.black_box import Square
from pidformer.robustness.losses import cross_entropy, dlr, logit_difference, targeted_dlr
from pidformer.robustness.queries import ascent, check_finite, confirm, is_right
from pidformer.robustness.threat import Model

# B images of D numbers


_MOMENTUM = 0.75


@dataclass(frozen=True, kw_only=True, repr=False)
class APGD(BallAttack):
    """Ascent with momentum whose step, 2 eps at first, is halved wherever it stops to pay:

        z = P(x_k + step u(x_k)),   x_{k+1} = P(x_k + 0.75 (z - x_k) + 0.25 (x_k - x_{k-1})),

    u the steepest direction of the loss in the norm, P the projection onto ball and box. At some
    checkpoints an image's step is halved, and the image goes back to its best point, if fewer than
    a fraction `rho` of the steps since the last one raised its loss, or if neither its step nor its
    best loss has changed since.

    `targets=k` climbs towards each of the k most likely wrong classes in turn, with the targeted
    DLR loss; 0 is untargeted. An image is done as soon as one of its points is misclassified; one
    that no run breaks comes back unchanged.
    """

    steps: int = 100
    restarts: int = 1
    loss: Literal["ce", "dlr"] = "ce"
    targets: int = 0
    rho: float = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps, restarts=self.restarts)
        if self.loss not in ("ce", "dlr"):
            raise InputError(f"loss must be ce or dlr, got {shortened(self.loss)}")
        if self.targets < 0 or (self.targets and self.loss != "dlr"):
            raise InputError(f"targets={self.targets} needs loss='dlr', and at least 0 targets")
        if not 0 < self.rho < 1:
            raise InputError(f"rho must be in (0, 1), got {self.rho:g}")

    def perturb(self, model: Model, batch: AttackBatch) -> Tensor:
        """Each restart, for each target, on the images that the runs before did not break."""
        places = [place for place in range(max(self.targets, 1)) for _ in range(self.restarts)]
        return on_survivors(model, batch, [partial(self._run, model, place) for place in places])

    def _run(self, model: Model, place: int, batch: AttackBatch) -> Tensor:
        """One ascent; images that it does not break come back unchanged."""
        images, labels, draws, bounds = batch
        targets = likely_class(model, images, labels, place) if self.targets else None
        if self.targets and targets is None:
            return images
        result = images.clone()
        start = random_start(images, self.eps, self.norm, bounds, draws)
        checkpoints = _checkpoints(self.steps)
        path = _Path.begin(images, labels, targets, start, self.eps)
        last_check = 0
        for k in range(self.steps + 1):
            logits, losses, gradient = ascent(model, path.x, *self._loss_of(path))
            check_finite(gradient)
            alive = confirm(model, path.x, path.labels, logits.argmax(-1) == path.labels)
            if not bool(alive.all()):
                result[path.rows[~alive]] = path.x[~alive]
                path, losses, gradient = path.keep(alive), losses[alive], gradient[alive]
            if not len(path.rows) or k == self.steps:
                break
            path = path.judge(losses, gradient)
            if k in checkpoints:
                path = path.check(self.rho * (k - last_check))
                last_check = k
            path = self._step(path, bounds, is_first=k == 0)
        return result

    def _loss_of(self, path: _Path) -> tuple[Any, ...]:
        if self.targets:
            return targeted_dlr, path.labels, path.targets
        return dlr if self.loss == "dlr" else cross_entropy, path.labels

    def _step(self, path: _Path, bounds: Bounds, *, is_first: bool) -> _Path:
        def project(x: Tensor) -> Tensor:
            return into_ball(x, path.images, self.eps, self.norm, bounds)

        ahead = project(path.x + path.step * steepest(path.gradient, self.norm))
        if not is_first:
            momentum = (1 - _MOMENTUM) * (path.x - path.previous)
            ahead = project(path.x + _MOMENTUM * (ahead - path.x) + momentum)
        return path._replace(x=ahead, previous=path.x)


class _Path(NamedTuple):
    """All that one ascent remembers; every field has one row per image."""

    rows: Tensor
    images: Tensor
    labels: Tensor
    targets: Tensor
    x: Tensor
    previous: Tensor
    gradient: Tensor
    loss: Tensor
    step: Tensor
    best: Tensor
    best_gradient: Tensor
    best_loss: Tensor
    rises: Tensor
    """Steps since the last checkpoint that raised the loss."""
    checked_loss: Tensor
    """Best loss at the last checkpoint."""
    was_halved: Tensor

    @classmethod
    def begin(
        cls, images: Tensor, labels: Tensor, targets: Tensor | None, start: Tensor, eps: float
    ) -> _Path:
        # The first point counts as a rise, and the first checkpoint has no step of before.
        low = torch.full(labels.shape, -float("inf"), dtype=torch.float64, device=images.device)
        rows = torch.arange(len(labels), device=labels.device)
        nothing = torch.zeros_like(images)
        step = torch.full_like(images[:, :1, :1, :1], 2 * eps)
        return cls(
            rows, images, labels, labels if targets is None else targets, start, start, nothing,
            low, step, start, nothing, low, torch.full_like(low, -1.0), low, low < 0,
        )  # fmt: skip

    def keep(self, alive: Tensor) -> _Path:
        return _Path(*(field[alive] for field in self))

    def judge(self, losses: Tensor, gradient: Tensor) -> _Path:
        """Take note of the loss and the gradient at `x`."""
        losses = losses.double()
        is_better = losses > self.best_loss
        wide = is_better[:, None, None, None]
        return self._replace(
            gradient=gradient,
            loss=losses,
            rises=self.rises + (losses > self.loss),
            best=torch.where(wide, self.x, self.best),
            best_gradient=torch.where(wide, gradient, self.best_gradient),
            best_loss=torch.where(is_better, losses, self.best_loss),
        )

    def check(self, rises_needed: float) -> _Path:
        """Halve the step of the images that oscillate or are stuck, and send them back."""
        is_stuck = ~self.was_halved & (self.checked_loss == self.best_loss)
        is_halved = (self.rises < rises_needed) | is_stuck
        wide = is_halved[:, None, None, None]
        return self._replace(
            step=torch.where(wide, self.step / 2, self.step),
            x=torch.where(wide, self.best, self.x),
            gradient=torch.where(wide, self.best_gradient, self.gradient),
            rises=torch.zeros_like(self.rises),
            checked_loss=self.best_loss,
            was_halved=is_halved,
        )


def _checkpoints(steps: int) -> set[int]:
    """ceil(p_j steps) with p_1 = 0.22 and p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06).

    >>> sorted(_checkpoints(100))
    [22, 41, 57, 70, 80, 87, 93, 99]
    """
    found, before, now = set(), 0.0, 0.22
    while now < 1:
        found.add(math.ceil(round(now * steps, 9)))
        before, now = now, now + max(now - before - 0.03, 0.06)
    return found


@dataclass(frozen=True, kw_only=True, repr=False)
class FAB(BallAttack):
    """Towards each of the `targets` most likely wrong classes t in turn, from the image x_0:

        plane   z_t - z_y = 0 linearised at x,
        d, d_0  the shortest steps from x and from x_0 onto it inside the box,
        x <- (1 - a) (x + eta d) + a (x_0 + eta d_0),   a = min(|d| / (|d| + |d_0|), 0.1),

    and wherever x is misclassified it is drawn back to x_0 + beta (x - x_0). An image is broken,
    and done, once a misclassified point lies within `eps`; the others come back unchanged. Nothing
    is drawn.
    """

    steps: int = 100
    targets: int = 9
    eta: float = 1.05
    beta: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps, targets=self.targets)
        if not (self.eta >= 1 and 0 < self.beta < 1):
            raise InputError(
                f"eta must be at least 1 and beta in (0, 1), got {self.eta:g} and {self.beta:g}"
            )

    def perturb(self, model: Model, batch: AttackBatch) -> Tensor:
        """Each target on the images that the targets before did not break."""
        runs = [partial(self._run, model, place) for place in range(self.targets)]
        return on_survivors(model, batch, runs)

    def _run(self, model: Model, place: int, batch: AttackBatch) -> Tensor:
        """One search; images that it does not break within the budget come back unchanged."""
        result = x = batch.images
        targets = likely_class(model, x, batch.labels, place)
        if targets is None:
            return result
        result, rows = result.clone(), torch.arange(len(x), device=x.device)
        for _ in range(self.steps):
            x = self._towards_boundary(model, batch, x, targets)
            alive = is_right(model, x, batch.labels)
            change = x - batch.images
            is_done = ~alive & (length(change, self.norm)[:, 0, 0, 0] <= self.eps)
            result[rows[is_done]] = x[is_done]
            # What is wrong but too far away goes back, to look for a nearer point.
            x = torch.where(alive[:, None, None, None], x, batch.images + self.beta * change)
            if bool(is_done.any()):
                batch, rows = batch.of(~is_done), rows[~is_done]
                x, targets = x[~is_done], targets[~is_done]
                if not len(rows):
                    break
        return result

    def _towards_boundary(
        self, model: Model, batch: AttackBatch, x: Tensor, targets: Tensor
    ) -> Tensor:
        images, labels, _, bounds = batch
        _, gap, gradient = ascent(model, x, logit_difference, labels, targets)
        check_finite(gradient)
        normal = gradient.flatten(1)
        offset = (normal * x.flatten(1)).sum(1) - gap.to(x.dtype)
        step = onto_plane(x.flatten(1), normal, offset, self.norm, bounds).view_as(x)
        step_0 = onto_plane(images.flatten(1), normal, offset, self.norm, bounds).view_as(x)
        near, near_0 = length(step, self.norm), length(step_0, self.norm)
        share = (near / (near + near_0).clamp(min=1e-12)).clamp(max=0.1)
        ahead, ahead_0 = x + self.eta * step, images + self.eta * step_0
        return ((1 - share) * ahead + share * ahead_0).clamp(*bounds)


@dataclass(frozen=True, kw_only=True, repr=False)
class AutoAttack(BallAttack):
    """APGD on the cross entropy, APGD on the targeted DLR loss, targeted FAB, Square.

    Each attacks the images that are still classified right, so the accuracy left is that under the
    worst of the four for every image. The version "standard" has 100 steps, 9 targets and 5000
    queries, in either norm. Images that nothing breaks come back unchanged.
    """

    version: Literal["standard"] = "standard"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.version != "standard":
            raise InputError(
                f"AutoAttack has the version 'standard' only, got {shortened(self.version)}"
            )

    @property
    def stages(self) -> tuple[Attack, ...]:
        """The attacks, in their order."""
        return (
            APGD(eps=self.eps, norm=self.norm, loss="ce"),
            APGD(eps=self.eps, norm=self.norm, loss="dlr", targets=9),
            FAB(eps=self.eps, norm=self.norm, targets=9),
            Square(eps=self.eps, norm=self.norm),
        )

    def perturb(self, model: Model, batch: AttackBatch) -> Tensor:
        """Each stage on the images that the stages before did not break."""
        runs = [partial(stage.perturb, model) for stage in self.stages]
        return on_survivors(model, batch, runs)
