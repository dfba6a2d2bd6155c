"""A model's gains, however they are written, layer by layer."""

from collections.abc import Iterable, Mapping, Sequence

from pidformer.control.feedback import as_feedback
from pidformer.control.gains import GainsLike, PIDGains, as_gains, is_numbers
from pidformer.errors import InputError

__all__ = ["GainsLike", "ModelGains", "as_gains", "layer_gains", "refuse_terms", "resolve_gains"]

ModelGains = PIDGains | tuple[PIDGains, ...] | None
"""The same gains in every layer, one for each layer, or none: softmax attention."""
NO_WORDS = {"embedded": "its reference is looked up by word, and images have no words"}
"""Why a model of images refuses a learned reference."""


def resolve_gains(given: GainsLike | Sequence[GainsLike] | None, depth: int) -> ModelGains:
    """A model's gains, checked against its depth."""
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Sequence) or is_numbers(given):
        return as_feedback(given)
    if len(given) != depth:
        raise InputError(f"gains for {len(given)} layers do not fit a model of {depth} layers")
    return tuple(as_feedback(layer) for layer in given)


def refuse_terms(layers: Iterable[PIDGains | None], reasons: Mapping[str, str]) -> None:
    """Refuse laws with a coefficient that a kind of model does not have, for its reason."""
    for layer in layers:
        for name, reason in reasons.items():
            if getattr(layer, name, 0):
                raise InputError(f"{layer.kind} is not offered here: {reason}")  # type: ignore[union-attr]


def layer_gains(gains: ModelGains, depth: int) -> tuple[PIDGains | None, ...]:
    """The gains of each of `depth` layers."""
    return gains if isinstance(gains, tuple) else (gains,) * depth
