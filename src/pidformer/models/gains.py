"""A model's gains, however they are written, layer by layer."""

from collections.abc import Iterable, Mapping, Sequence

from pidformer.control.feedback import Feedback, as_feedback, reads_state
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


def acts_in_layer(gains: PIDGains | None, depth: int, first_layer: str) -> bool:
    """Whether a controller acts in layer `depth`, where learned gains receive a gradient.

    A free first layer has no control but what looks at its own values alone, and a layer of zero
    gains stays at zero.
    """
    if gains is None or gains.kind == "softmax":
        return False
    return depth > 0 or first_layer == "controlled" or not reads_state(gains)


def learned_layers(
    gains: Sequence[PIDGains | None], learn_gains: bool, first_layer: str
) -> list[bool]:
    """Which layers learn their gains: those whose control acts."""
    is_bare = any(isinstance(law, Feedback) and law.own == law.first == 0 for law in gains)
    if is_bare and not learn_gains:
        raise InputError(
            "skipinit starts without attention (own = 0), so learn its coefficients: "
            "learn_gains=True in Python, model.learn_gains=true in a recipe"
        )
    if any(getattr(layer, "embedded", 0) for layer in gains):
        first_layer = "controlled"  # the reference is there before the first layer
    learned = [
        learn_gains and acts_in_layer(layer, depth, first_layer)
        for depth, layer in enumerate(gains)
    ]
    if learn_gains and not any(learned):
        raise InputError("learn_gains needs a layer with control: give gains with p > 0")
    return learned


def is_gain(key: str) -> bool:
    """Whether a key of a state dict belongs to learned gains, of images or language."""
    return "attn.gains." in key
