"""The ways to name a model's gains, and what they come to, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pidformer.control.gains import PIDGains
from pidformer.errors import InputError

GainsLike = PIDGains | str | Mapping[str, float]
"""Gains, their text "P,I,D[,BETA]", a preset ("default", "deit", "segmenter", "lm") or fields."""
ModelGains = PIDGains | tuple[PIDGains, ...] | None
"""The same gains in every layer, one for each layer, or none: softmax attention."""


def as_gains(given: GainsLike) -> PIDGains:
    """One controller's gains, however they are written.

    >>> as_gains("0.4,0.1,0.05") == as_gains({"p": 0.4, "i": 0.1, "d": 0.05})
    True
    """
    if isinstance(given, PIDGains):
        return given
    if isinstance(given, str):
        return PIDGains.parse(given) if "," in given else PIDGains.preset(given)
    if isinstance(given, Mapping):
        return PIDGains.from_dict(given)
    raise InputError(
        f"gains must be PIDGains, P,I,D,BETA text, a preset or a mapping, got {given!r}; "
        "PIDGains() is a layer without control"
    )


def resolve_gains(given: GainsLike | Sequence[GainsLike] | None, depth: int) -> ModelGains:
    """A model's gains, checked against its depth."""
    if given is None:
        return None
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        return as_gains(given)
    if len(given) != depth:
        raise InputError(f"gains for {len(given)} layers do not fit a model of {depth} layers")
    return tuple(as_gains(layer) for layer in given)


def layer_gains(gains: ModelGains, depth: int) -> tuple[PIDGains | None, ...]:
    """The gains of each of `depth` layers."""
    return gains if isinstance(gains, tuple) else (gains,) * depth
