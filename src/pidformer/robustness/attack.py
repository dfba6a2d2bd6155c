"""What all attacks share: a budget, checks, the model's mode, and who is still standing."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from pidformer.errors import InputError, shortened
from pidformer.nn.depth import evaluating, modules_of
from pidformer.robustness.balls import PIXELS, Bounds, Norm
from pidformer.robustness.queries import Precision, is_right, logits_of, searching
from pidformer.robustness.threat import (
    Draws,
    Model,
    as_budget,
    check_batch,
    check_budget,
    check_distance,
    check_span,
    pixel_text,
)

# B images


class AttackBatch(NamedTuple):
    """What an attack is given: images with their labels, what it may draw, and its bounds."""

    images: Tensor
    labels: Tensor
    draws: Draws
    bounds: Bounds = PIXELS

    def of(self, index: Tensor) -> "AttackBatch":
        images, labels, draws, bounds = self
        return AttackBatch(images[index], labels[index], draws.of(index), bounds)


@dataclass(frozen=True, kw_only=True, repr=False)
class Attack(ABC):
    """A threat with a budget `eps`. A new one says in `perturb` how it spends it.

    Budgets may be given as text, "3/255". `precision` is that of the search, not of the verdict:
    see `Precision`.
    """

    eps: float
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        self._read_budgets("eps")
        if self.precision not in get_args(Precision):
            names = ", ".join(get_args(Precision))
            raise InputError(f"precision must be one of {names}; got {shortened(self.precision)}")

    def _read_budgets(self, *names: str) -> None:
        for name in names:
            object.__setattr__(self, name, as_budget(getattr(self, name)))

    def __call__(
        self, model: Model, images: Tensor, labels: Tensor, *, seed: int = 0, offset: int = 0
    ) -> Tensor:
        """The attacked images. What is drawn for row i depends on (seed, offset + i) alone."""
        check_batch(images, labels)
        span = images.aminmax() if images.numel() else ()
        try:
            return self.within(
                model, AttackBatch(images, labels, Draws.of_batch(images, seed, offset))
            )
        finally:  # looked at when the attack has sent all its work: no device waits
            check_span(span)

    def within(self, model: Model, batch: AttackBatch) -> Tensor:
        """The attacked images inside any bounds, with the model in evaluation mode."""
        # A caller in inference mode wants no graph of its own, but the attack may need one.
        with under_attack(model), torch.inference_mode(False), torch.no_grad():
            images = batch.images.detach().clone()
            if not self.eps or not len(images):
                return images
            own = batch._replace(images=images, labels=batch.labels.clone())
            return self.perturb(searching(model, self.precision), own)

    @abstractmethod
    def perturb(self, model: Model, batch: AttackBatch) -> Tensor:
        """The attack itself: no gradients are recorded, and the images may be overwritten."""

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.precision == "float32":
            del values["precision"]
        texts = (
            f"{name}={pixel_text(value) if isinstance(value, float) else repr(value)}"
            for name, value in values.items()
        )
        return f"{type(self).__name__}({', '.join(texts)})"


@contextmanager
def under_attack(model: object) -> Iterator[None]:
    """The model in evaluation mode and its weights without gradients, both given back at the end.

    Attacks differentiate by the images alone. With weights that ask for gradients, the forward
    would keep what only those need, and the backward of a compiled model would compute them.
    """
    weights = (w for m in modules_of(model) for w in m._parameters.values())
    learning = [weight for weight in weights if weight is not None and weight.requires_grad]
    try:
        for weight in learning:
            weight.requires_grad = False
        with evaluating(model):
            yield
    finally:
        for weight in learning:
            weight.requires_grad = True


def on_survivors(
    model: Model, batch: AttackBatch, runs: Iterable[Callable[[AttackBatch], Tensor]]
) -> Tensor:
    """Each run on the images that are still classified right; what no run breaks stays as it was.

    Run number k draws from `batch.draws.at(k)`.
    """
    attacked = batch.images.clone()
    alive = is_right(model, batch.images, batch.labels).nonzero()[:, 0]
    for place, run in enumerate(runs):
        if not len(alive):
            break
        left = batch._replace(draws=batch.draws.at(place)).of(alive)
        found = run(left)
        is_broken = ~is_right(model, found, left.labels)
        attacked[alive[is_broken]] = found[is_broken]
        alive = alive[~is_broken]
    return attacked


def likely_class(model: Model, images: Tensor, labels: Tensor, place: int) -> Tensor | None:
    """The most likely wrong class of each clean image (place 0), the next (1), ...; else None."""
    logits = logits_of(model, images)
    if place >= logits.shape[1] - 1:
        return None
    others = logits.scatter(1, labels[:, None], -float("inf"))
    return others.topk(place + 1, dim=1).indices[:, place]


@dataclass(frozen=True, kw_only=True, repr=False)
class BallAttack(Attack):
    """An attack inside the ball of either norm."""

    eps: float = 3 / 255
    norm: Norm = "Linf"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in get_args(Norm):
            raise InputError(f"norm must be Linf or L2, got {shortened(self.norm)}")
        (check_budget if self.norm == "Linf" else check_distance)("eps", self.eps)
