"""What all attacks share: checks, modes, precision, gradients, who is still standing; and the
balls, boxes and planes of the L-infinity and the L2 norm."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from pidformer.devices import tf32
from pidformer.errors import InputError, shortened
from pidformer.models.pixel import logits_in
from pidformer.nn.depth import evaluating, modules_of
from pidformer.robustness.recording import current
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

# B images of D numbers


Precision = Literal["float32", "tf32", "bfloat16"]
"""What an attack searches in.

float32 is the model as it is: in whatever its weights, or the caller's autocast, say. tf32 lets
matrix products of a CUDA device round their factors to 10 bits, and changes nothing elsewhere.
bfloat16 is autocast. The images stay in their own dtype, and whether one is broken is always asked
of the model as it is.
"""


class Bounds(NamedTuple):
    """Where the entries of an attacked image may lie."""

    low: float
    high: float


PIXELS = Bounds(0.0, 1.0)
UNBOUNDED = Bounds(-float("inf"), float("inf"))


class AttackBatch(NamedTuple):
    """What an attack is given: images with their labels, what it may draw, and its bounds."""

    images: Tensor
    labels: Tensor
    draws: Draws
    bounds: Bounds = PIXELS

    def of(self, index: Tensor) -> "AttackBatch":
        """Some of its rows."""
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


@dataclass(frozen=True)
class Searching:
    """A model that answers in less than float32."""

    model: Model
    precision: Precision

    def __call__(self, images: Tensor) -> Tensor:
        with lowered(self, images.device.type):
            return self.model(images)


def searching(model: Model, precision: Precision) -> Model:
    """The model for the search; with float32, the model itself."""
    return model if precision == "float32" else Searching(model, precision)


def judge(model: Model) -> Model:
    """The model for the verdict."""
    return model.model if isinstance(model, Searching) else model


def lowered(model: Model, device_type: str) -> AbstractContextManager[object]:
    """Where forward and backward of this model run: the backward of tf32 needs it too."""
    if not isinstance(model, Searching):
        return nullcontext()
    if model.precision == "bfloat16":
        return torch.autocast(device_type, torch.bfloat16)
    return tf32() if device_type == "cuda" else nullcontext()


def logits_of(model: Model, images: Tensor) -> Tensor:
    """The model's logits, in float32 at least."""
    logits = logits_in(model(images))
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def is_right(model: Model, images: Tensor, labels: Tensor) -> Tensor:
    """Which images are classified right, (B,), whatever the precision of the search."""
    return logits_in(judge(model)(images)).argmax(-1) == labels


def confirm(model: Model, images: Tensor, labels: Tensor, alive: Tensor) -> Tensor:
    """`alive` (B,), after a second look at what a search in less than float32 took for broken."""
    if judge(model) is model or bool(alive.all()):
        return alive
    fallen = (~alive).nonzero()[:, 0]
    return alive.index_put((fallen,), is_right(model, images[fallen], labels[fallen]))


def ascent(
    model: Model, images: Tensor, loss: Callable[..., Tensor], *classes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, losses (B,) and the gradient of each image's own loss with respect to it.

    `loss` is one of `losses`, `classes` what it takes beside the logits.
    """
    recorder, plain = current() if images.is_cuda else None, judge(model)
    if recorder is None or not recorder.takes(plain):
        return _ascent(model, loss, images, *classes)
    precision = model.precision if isinstance(model, Searching) else "float32"
    work = partial(_ascent, model, loss)
    return recorder.run(plain, precision, loss, work, images, *classes)  # type: ignore


def _ascent(
    model: Model, loss: Callable[..., Tensor], images: Tensor, *classes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    with torch.enable_grad(), lowered(model, images.device.type):
        images = images.detach().requires_grad_()
        logits = logits_of(model, images)
        losses = loss(logits, *classes)
        if not losses.requires_grad:
            raise InputError("the model's output has no gradient; does it detach or no_grad?")
        # A sum, not a mean: the gradient of an image does not know the size of its batch.
        (gradient,) = torch.autograd.grad(losses.sum(), images)
    if 0 in gradient.stride():  # one number for many pixels: attacks write into it
        gradient = gradient.contiguous()
    return logits.detach(), losses.detach(), gradient


def check_finite(gradient: Tensor) -> None:
    """Refuse NaN in a gradient: its sign is 0, so it would look like a model that resists."""
    if not bool(torch.stack(gradient.aminmax()).isfinite().all()):
        raise InputError("the gradient of the model's loss is not finite; check its logits")


def check_path(ranges: Sequence[Sequence[Tensor]]) -> None:
    """`check_finite` of a whole path, given the least and the largest entry of each gradient.

    A path without any slope is told: it may be that of a model that rounds, or is too sure.
    """
    found = torch.stack([end for ends in ranges for end in ends]).cpu()  # no wait but this one
    check_finite(found)
    if not found.any():
        warnings.warn(
            "the gradient of the model's loss is 0 in every pixel, so the attack follows nothing "
            "and its accuracy is no robustness; try Square(), which needs no gradients, or "
            "APGD(loss='dlr')",
            stacklevel=4,
        )


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


Norm = Literal["Linf", "L2"]

_TINY = 1e-12


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


def length(x: Tensor, norm: Norm) -> Tensor:
    """The norm of each image, (B, 1, 1, 1)."""
    order = float("inf") if norm == "Linf" else 2.0
    return torch.linalg.vector_norm(x, order, dim=(1, 2, 3), keepdim=True)


def steepest(gradient: Tensor, norm: Norm) -> Tensor:
    """The direction of length 1 in which the loss grows fastest."""
    return gradient.sign() if norm == "Linf" else gradient / (length(gradient, norm) + _TINY)


def into_ball(x: Tensor, centre: Tensor, eps: float, norm: Norm, bounds: Bounds) -> Tensor:
    """The nearest point of the ball around `centre`, then of the box: it lies in both."""
    change = x - centre
    if norm == "Linf":
        change = change.clamp(-eps, eps)
    else:
        change = change * (eps / length(change, norm).clamp(min=max(eps, _TINY)))
    return (centre + change).clamp(*bounds)


def random_start(images: Tensor, eps: float, norm: Norm, bounds: Bounds, draws: Draws) -> Tensor:
    """A random point on the edge of the ball, moved into the box."""
    shape = images.shape[1:]
    drawn = 2 * draws.uniform(*shape) - 1 if norm == "Linf" else draws.normal(*shape)
    drawn = drawn.to(images.dtype)
    return (images + eps * drawn / (length(drawn, norm) + _TINY)).clamp(*bounds)


def onto_plane(x: Tensor, normal: Tensor, offset: Tensor, norm: Norm, bounds: Bounds) -> Tensor:
    """The shortest step d (B, D) with <normal, x + d> = offset that keeps x + d in the box.

    With s_i = 1 (L-infinity) or |w_i| (L2) and r_i the room of x_i towards the plane, the solution
    is |d_i| = min(t s_i, r_i) for the t at which sum_i |w_i| |d_i| reaches the distance c: a
    piecewise linear function of t with corners at r_i / s_i. A plane that does not cross the box is
    approached as far as the box allows.
    """
    gap = offset - (normal * x).sum(1)  # (B,)
    weight = normal.abs()
    direction = normal.sign() * gap.sign()[:, None]
    c = gap.abs()[:, None]
    slope = torch.ones_like(weight) if norm == "Linf" else weight
    reach = weight * slope
    room = torch.where(direction > 0, bounds.high - x, x - bounds.low)
    # Without bounds the whole way is t = c / sum reach: any room beyond it is as good as infinite.
    free = 2 * slope * c / (reach.sum(1, keepdim=True) + _TINY) + 1
    room = torch.where(room.isinf(), free, room)
    corner = room / slope.clamp(min=_TINY)
    corner, order = corner.sort(dim=1)
    spent = (weight * room).gather(1, order).cumsum(1)  # by the entries that have hit the box
    ordered = reach.gather(1, order)
    left = ordered.sum(1, keepdim=True) - ordered.cumsum(1)  # slope of those that have not
    covered = spent + left.clamp(min=0) * corner  # at each corner
    index = torch.searchsorted(covered.contiguous(), c).clamp(max=x.shape[1] - 1)
    before = spent.gather(1, index) - (weight * room).gather(1, order).gather(1, index)
    t = (c - before) / (left.gather(1, index).clamp(min=0) + ordered.gather(1, index) + _TINY)
    is_far = c >= covered[:, -1:]
    size = torch.where(is_far, room * (weight > 0), torch.minimum(t * slope, room))
    return direction * size
