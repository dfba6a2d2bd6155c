"""One law for the methods that feed a token's own values back: PID control and its relatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from torch import Tensor

from pidformer.control.gains import PRESETS, GainsLike, PIDGains, acts, as_gains
from pidformer.errors import InputError, unknown


@dataclass(frozen=True, kw_only=True, repr=False)
class Feedback(PIDGains):
    """PID control together with the terms of its relatives:

        u = scale (y + skip v - exclude (y.v / v.v) v + p e + i sum(e) + d (e - e_previous))
        y = A (first v_0 + own v),    e = beta v_0 - v

    `skip` keeps a share of the token's own value (negative: takes it away), `exclude` takes away
    what of y points along it, `first` and `own` mix the values that attention sees with those of
    the first layer. The terms without v_0 act in the first layer too.
    """

    skip: float = 0.0
    exclude: float = 0.0
    first: float = 0.0
    own: float = 1.0
    scale: float = 1.0

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
        return Feedback(**_on_the_way(self, factor))


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


Law = Feedback | FeedbackTensors


def on_the_way(law: Law, share: Tensor) -> FeedbackTensors:
    """`law.scaled(share)` for tensors."""
    return FeedbackTensors(**_on_the_way(law, share))


def _on_the_way(law: Law, share: Any) -> dict[str, Any]:
    plain = Feedback(beta=law.beta).to_dict()
    ends = {name: getattr(law, name) for name in plain}
    return {
        name: plain[name] + share * (end - plain[name]) if acts(end - plain[name]) else end
        for name, end in ends.items()
    }


def mixes(gains: Any) -> bool:
    """Whether attention sees other values than the layer's own."""
    return isinstance(gains, Law) and (acts(gains.first) or acts(gains.own - 1))


def is_without_attention(gains: Any) -> bool:
    """Whether a law mixes no tokens: a start for coefficients that are learned."""
    return isinstance(gains, Feedback) and gains.own == gains.first == 0


def reads_state(gains: Any) -> bool:
    """Whether a law looks back to layers before its own."""
    return not isinstance(gains, Law) or any(
        acts(gain) for gain in (gains.p, gains.i, gains.d, gains.first)
    )


RELATIVES: Mapping[str, PIDGains] = {
    "p": PIDGains(p=0.6),
    "neutreno": PIDGains(p=0.6),
    "pid": PIDGains(p=0.4, i=0.1, d=0.05),
    "xsa": Feedback(exclude=1.0),
    "laplacian": Feedback(skip=-1.0),
    "resformer": Feedback(first=0.5, own=0.5),
    "skipinit": Feedback(skip=1.0, own=0.0),
}
"""Methods by name, with coefficients to start from; docs/family.md says which is which."""
REFUSED: Mapping[str, str] = {
    "twicing": "(2 A - A^2) v attends twice, and the controller reads one product with A",
}
"""Methods that the law does not have, with the reason."""
_BEYOND = {field.name for field in fields(Feedback)} - set(PIDGains.__dataclass_fields__)


def as_feedback(given: Any) -> PIDGains:
    """What a layer takes: gains as in `as_gains`, a `Feedback`, its fields or a method's name.

    >>> as_feedback("xsa")
    Feedback(exclude=1.0)
    """
    if isinstance(given, Feedback):
        return given
    if isinstance(given, str) and "," not in given:
        if given in REFUSED:
            raise InputError(f"{given} is not offered: {REFUSED[given]}")
        known = {**PRESETS, **RELATIVES}
        if given not in known:
            raise unknown("preset", given, known)
        return known[given]
    if isinstance(given, Mapping) and not _BEYOND.isdisjoint(given):
        return Feedback.from_dict(given)
    return as_gains(given)


def read_gains(given: Any) -> Any:
    """What a layer takes: None, what has gains of its own (`Gains`), or as in `as_feedback`."""
    return given if given is None or hasattr(given, "beta") else as_feedback(given)


def discretised(gains: GainsLike, *, derivative: str = "explicit", step: float = 1.0) -> PIDGains:
    """The layer of another discretisation of the continuous model, with depth in steps of h.

        explicit   v_{l+1} = v_l + h ((A - 1) v_l + p e_l + i h S_l) + d (e_l - e_{l-1})
        implicit   (1 + d) (v_{l+1} - v_l) = h ((A - 1) v_l + p e_l + i h S_l)

    Explicit with h = 1 is Definition 1, and gives the gains back. An implicit derivative reads no
    previous values.
    """
    gains = as_gains(gains)
    if derivative not in ("explicit", "implicit"):
        raise unknown("derivative", derivative, ("explicit", "implicit"))
    if not (isinstance(step, int | float) and 0 < step <= 1):
        raise InputError(f"step must be in (0, 1], got {step!r}; 1 is the paper's network")
    if derivative == "explicit" and step == 1:
        return gains
    is_implicit = derivative == "implicit"
    slow = 1 + gains.d if is_implicit else 1.0
    return Feedback(
        **asdict(gains) | {"i": step * gains.i, "d": 0.0 if is_implicit else gains.d / step},
        skip=slow / step - 1,
        scale=step / slow,
    )
