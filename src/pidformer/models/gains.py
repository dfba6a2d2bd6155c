"""A model's gains, however they are written, layer by layer."""

from collections.abc import Sequence

from pidformer.control.feedback import as_feedback
from pidformer.control.gains import GainsLike, PIDGains, as_gains, is_numbers
from pidformer.errors import InputError

__all__ = ["GainsLike", "ModelGains", "as_gains", "layer_gains", "resolve_gains"]

ModelGains = PIDGains | tuple[PIDGains, ...] | None
"""The same gains in every layer, one for each layer, or none: softmax attention."""


def resolve_gains(given: GainsLike | Sequence[GainsLike] | None, depth: int) -> ModelGains:
    """A model's gains, checked against its depth."""
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Sequence) or is_numbers(given):
        return as_feedback(given)
    if len(given) != depth:
        raise InputError(f"gains for {len(given)} layers do not fit a model of {depth} layers")
    return tuple(as_feedback(layer) for layer in given)


def layer_gains(gains: ModelGains, depth: int) -> tuple[PIDGains | None, ...]:
    """The gains of each of `depth` layers."""
    return gains if isinstance(gains, tuple) else (gains,) * depth
