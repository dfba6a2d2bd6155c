"""One law for the methods that feed a token's own values back: PID control and its relatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, get_args

import torch.nn.functional as F
from torch import Tensor

from pidformer.control.gains import (
    PRESETS,
    Derivative,
    GainsLike,
    PIDGains,
    acts,
    as_gains,
    is_name,
)
from pidformer.errors import InputError, check_known


@dataclass(frozen=True, kw_only=True, repr=False)
class Feedback(PIDGains):
    """PID control together with the terms of its relatives:

        u = g scale (y + skip v - exclude (y.v / v.v) v + p e + i sum(e) + d (e - e_previous))
        y = A (first v_0 + own v),    e = beta v_0 - v,    g = 1 + gate (sigmoid(W x) - 1)

    `skip` keeps a share of the token's own value (negative: takes it away), `exclude` takes away
    what of y points along it, `first` and `own` mix the values that attention sees with those of
    the first layer. The terms without v_0 act in the first layer too. Two bring weights with them:
    `gate` a projection W of the layer's input x, and `embedded` (0 or 1) a learned embedding of
    the token in place of v_0.
    """

    skip: float = 0.0
    exclude: float = 0.0
    first: float = 0.0
    own: float = 1.0
    scale: float = 1.0
    gate: float = 0.0
    embedded: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gate <= 1:
            raise InputError(f"gain gate must be in [0, 1], got {self.gate}; 1 is the published")
        if self.embedded not in (0, 1):
            raise InputError(f"gain embedded must be 0 or 1, got {self.embedded}")

    def __repr__(self) -> str:
        """The coefficients that differ from attention's."""
        own, plain = self.to_dict(), {f.name: f.default for f in fields(Feedback)}
        return f"Feedback({', '.join(f'{k}={v!r}' for k, v in own.items() if v != plain[k])})"

    @property
    def kind(self) -> Any:
        """The name of the method, or "feedback" if it has none."""
        return next((name for name, law in RELATIVES.items() if law == self), "feedback")

    def scaled(self, factor: float) -> Feedback:
        """The way from attention (0) to this law (1): every coefficient in proportion."""
        return Feedback(**on_the_way(self, factor))


@dataclass(frozen=True, kw_only=True)
class DiscreteGains(PIDGains):
    """PID gains with the discretisation that the layers follow, depth in steps of h = `step`:

        explicit   v_{l+1} = v_l + h ((A - 1) v_l + p e_l + i h S_l) + d (e_l - e_{l-1})
        implicit   (1 + d) (v_{l+1} - v_l) = h ((A - 1) v_l + p e_l + i h S_l)

    with S_l = e_1 + ... + e_l. Explicit with h = 1 is Definition 1, which is `PIDGains`. An
    implicit derivative reads no previous values.

    >>> as_feedback("0.8,0.5,0.05,0.1,implicit,step=0.5").step
    0.5
    """

    derivative: Derivative = "explicit"
    step: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("derivative", self.derivative, get_args(Derivative))
        if not 0 < self.step <= 1:
            raise InputError(f"step must be in (0, 1], got {self.step}; 1 is the paper's network")

    @cached_property
    def law(self) -> Feedback:
        """A layer of it."""
        is_implicit, h = self.derivative == "implicit", self.step
        slow = 1 + self.d if is_implicit else 1.0
        return Feedback(
            p=self.p,
            i=h * self.i,
            d=0.0 if is_implicit else self.d / h,
            beta=self.beta,
            skip=slow / h - 1,
            scale=h / slow,
        )


class FeedbackTensors(NamedTuple):
    """A `Feedback` whose coefficients may be tensors: of shape (), or (H, 1, 1) for value heads."""

    p: Any
    i: Any
    d: Any
    beta: float
    skip: Any
    exclude: Any
    first: Any
    own: Any
    scale: Any
    gate: Any
    embedded: float


Law = Feedback | FeedbackTensors


def acting_law(gains: Any) -> Any:
    """What a layer computes with: the law of a discretisation, anything else as it is."""
    return gains.law if isinstance(gains, DiscreteGains) else gains


def with_own(
    y: Tensor, value: Tensor, control: Tensor | None, skip: Any, exclude: Any, scale: Any
) -> Any:
    """scale (y + skip v - exclude (y.v / v.v) v + control)."""
    total = y if control is None else y + control
    if acts(skip):
        total = total + skip * value
    if acts(exclude):
        along = F.normalize(value, dim=-1)
        total = total - exclude * (y * along).sum(-1, keepdim=True) * along
    return scale * total if acts(scale - 1) else total


def on_the_way(law: Law, share: Any) -> dict[str, Any]:
    """The coefficients of a law at a share of the way from attention to it."""
    plain = Feedback(beta=law.beta).to_dict()
    ends = {name: getattr(law, name) for name in plain}
    return {
        name: plain[name] + share * (end - plain[name])
        if name != "embedded" and acts(end - plain[name])
        else end
        for name, end in ends.items()
    }


def mixes(gains: Any) -> bool:
    """Whether attention sees other values than the layer's own."""
    return isinstance(gains, Law) and (acts(gains.first) or acts(gains.own - 1))


def reads_state(gains: Any) -> bool:
    """Whether a law looks back to layers before its own."""
    if not isinstance(gains, Law):
        return True
    first = 0.0 if gains.embedded else gains.first
    return any(acts(gain) for gain in (gains.p, gains.i, gains.d, first))


def is_linear(gains: Any) -> bool:
    """Whether a law is linear in the values, and so has poles."""
    return not isinstance(gains, Feedback) or gains.exclude == gains.gate == 0


def token_bound(law: Feedback) -> float | None:
    """How many times the longest value (of v and v_0) a token of the output can be; None with PID.

    Attention takes means of values, taking away a component shortens what is left, and a gate is
    below 1: |scale| ((|first| + |own|) max(1, |1 - exclude|) + |skip|).
    """
    if law.p or law.i or law.d:
        return None
    mixed = (abs(law.first) + abs(law.own)) * max(1.0, abs(1 - law.exclude))
    return abs(law.scale) * (mixed + abs(law.skip))


RELATIVES: Mapping[str, PIDGains] = {
    **{name: PRESETS[name] for name in ("p", "neutreno", "pid")},
    "xsa": Feedback(exclude=1.0),
    "laplacian": Feedback(skip=-1.0),
    "resformer": Feedback(first=0.5, own=0.5),
    "skipinit": Feedback(skip=1.0, own=0.0),
    "value_embedding": Feedback(first=0.5, own=0.5, embedded=1.0),
    "gated": Feedback(gate=1.0),
}
"""Methods by name, with coefficients to start from; docs/family.md says which is which."""
REFUSED: Mapping[str, str] = {
    "twicing": "(2 A - A^2) v attends twice, and the controller reads one product with A",
    "shaped": "(a + b A - c C) v takes away the mean C v of all tokens that A sees, and the "
    "controller reads a token's own values; skipinit is (a + b A) v",
}
"""Methods that the law does not have, with the reason."""


def as_feedback(given: Any) -> PIDGains:
    """What a layer takes: gains as in `as_gains`, a `Feedback`, its fields or a method's name.

    Behind gains in text, "implicit" and "step=H" say how depth is discretised; in a mapping,
    `derivative` and `step` do (`DiscreteGains`).

    >>> as_feedback("xsa")
    Feedback(exclude=1.0)
    """
    if isinstance(given, Feedback | DiscreteGains):
        return given
    rest, steps = _without_steps(given)
    if steps:
        return discretised(rest, **steps)
    if isinstance(given, str) and is_name(given):
        if given in REFUSED:
            raise InputError(f"{given} is not offered: {REFUSED[given]}")
        known = {**PRESETS, **RELATIVES}
        check_known("preset", given, known)
        return known[given]
    if isinstance(given, Mapping) and not PIDGains.__dataclass_fields__.keys() >= given.keys():
        return Feedback.from_dict(given)
    return as_gains(given)


def read_gains(given: Any) -> Any:
    """What a layer takes: None, what has gains of its own (`Gains`), or as in `as_feedback`."""
    return given if given is None or hasattr(given, "beta") else as_feedback(given)


def discretised(
    gains: GainsLike, *, derivative: Derivative = "explicit", step: float = 1.0
) -> PIDGains:
    """The gains in another discretisation of the continuous model (`DiscreteGains`).

    Explicit with a step of 1 is Definition 1, and gives the gains back.
    """
    form = DiscreteGains(derivative=derivative, step=step)
    given = as_feedback(gains)
    if form == DiscreteGains():
        return given
    if isinstance(given, DiscreteGains):
        raise InputError(f"{given} say their discretisation; leave out another one")
    if isinstance(given, Feedback):
        raise InputError(
            f"steps and implicit derivatives are for PID gains; {given} has terms beyond them"
        )
    return replace(form, p=given.p, i=given.i, d=given.d, beta=given.beta)


def as_plain_gains(given: Any) -> PIDGains:
    """PID gains of Definition 1; other laws, and other discretisations, are refused."""
    return as_gains(as_feedback(given))


def _without_steps(given: Any) -> tuple[Any, dict[str, Any]]:
    """What is given, and apart from it what it says of the discretisation."""
    steps: dict[str, Any] = {}
    if isinstance(given, Mapping):
        steps = {name: given[name] for name in ("derivative", "step") if name in given}
        return {key: value for key, value in given.items() if key not in steps}, steps
    parts = [part.strip() for part in given.split(",")] if isinstance(given, str) else []
    while parts and (parts[-1].startswith("step=") or parts[-1] in get_args(Derivative)):
        name = "step" if parts[-1].startswith("step=") else "derivative"
        if name in steps:
            raise InputError(f"gains say their {name} twice: {given!r}")
        steps[name] = parts.pop().removeprefix("step=")
    if steps and not parts:
        raise InputError(f"{given!r} holds no gains; put them in front, as in deit,implicit")
    return ",".join(parts) if steps else given, steps
