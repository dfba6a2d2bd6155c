"""What a conversion asks for: gains by layer, however they were written."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from torch import nn

from pidformer.control.feedback import as_feedback
from pidformer.control.gains import PIDGains
from pidformer.control.pid import FirstLayer, check_first_layer
from pidformer.errors import InputError
from pidformer.models.gains import (
    GainsLike,
    layer_gains,
    learned_layers,
    refuse_terms,
    resolve_gains,
)
from pidformer.nn.gains import LearnedGains, device_of, learned_gains

_NEW_WEIGHTS = "it brings weights, and a converted model keeps those it has; train one of ours"


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The controllers of a model, one per layer."""

    gains: tuple[PIDGains, ...]
    first_layer: FirstLayer = "free"
    learn_gains: bool = False

    def __post_init__(self) -> None:
        check_first_layer(self.first_layer)

    @classmethod
    def of(
        cls,
        gains: GainsLike | Sequence[GainsLike],
        depth: int,
        layers: Iterable[int] | None,
        first_layer: FirstLayer,
        learn_gains: bool,
    ) -> Self:
        """Gains for each of `depth` layers; those not among `layers` have none.

        A layer that is not controlled still counts: the error of its values goes into the sum.
        """
        resolved = resolve_gains(gains, depth)
        if resolved is None:
            raise InputError(
                "convert needs gains, as pf.PIDGains(p=0.4); PIDGains() changes nothing"
            )
        by_layer = [layer or PIDGains() for layer in layer_gains(resolved, depth)]
        refuse_terms(by_layer, dict.fromkeys(("gate", "embedded"), _NEW_WEIGHTS))
        if layers is not None:
            chosen = _chosen(layers, depth)
            by_layer = [g if n in chosen else PIDGains(beta=g.beta) for n, g in enumerate(by_layer)]
        learned_layers(by_layer, learn_gains, first_layer)  # refuses what nothing would learn
        return cls(gains=tuple(by_layer), first_layer=first_layer, learn_gains=learn_gains)

    @classmethod
    def from_dict(cls, saved: Any, where: str) -> Self:
        """What `to_dict` gave, out of a file."""
        try:
            return cls(
                gains=tuple(as_feedback(layer) for layer in saved["gains"]),
                first_layer=saved["first_layer"],
                learn_gains=saved["learn_gains"],
            )
        except (KeyError, TypeError) as error:
            raise InputError(
                f"the pidformer section in {where} is damaged ({error}); convert the model again"
            ) from None

    def fitting(self, depth: int, where: str | Path) -> Self:
        """Itself, for a model of as many layers; `where` it was read from."""
        if len(self.gains) != depth:
            raise InputError(
                f"{where} holds gains for {len(self.gains)} layers, the model has {depth}"
            )
        return self

    def controllers(self, attention: Sequence[Any], heads: int) -> list[PIDGains | LearnedGains]:
        """The gains that attention modules will hold, or why they cannot; nothing is touched."""
        learned = learned_layers(self.gains, self.learn_gains, self.first_layer)
        return [
            learned_gains(gains, heads, device=device_of(module)) if is_learned else gains
            for module, gains, is_learned in zip(attention, self.gains, learned, strict=True)
        ]

    def put(self, attention: Sequence[Any], controllers: Sequence[Any]) -> None:
        """Hand the attention modules of a model their controllers."""
        for module, gains in zip(attention, controllers, strict=True):
            module.gains = gains
            module.first_layer = self.first_layer
            module.register_buffer("gain_share", None, persistent=False)

    @property
    def model_gains(self) -> PIDGains | tuple[PIDGains, ...]:
        """The gains as models give them: one for all layers if they agree."""
        return self.gains[0] if len(set(self.gains)) == 1 else self.gains

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a configuration file."""
        return {
            "gains": [layer.to_dict() for layer in self.gains],
            "first_layer": self.first_layer,
            "learn_gains": self.learn_gains,
        }


def remove(attention: Sequence[nn.Module]) -> None:
    """Take the controllers away again."""
    for module in attention:
        del module.gains, module.first_layer, module.gain_share


def shown_gains(attention: Any) -> str:
    """What `print(model)` says of an attention module; learned gains are a module of their own."""
    return "" if isinstance(attention.gains, nn.Module) else f"gains={attention.gains!r}"


def _chosen(layers: Iterable[int], depth: int) -> set[int]:
    """The layers that are named, counted from 0. A switch per layer, True or False, names none."""
    named = list(layers) if isinstance(layers, Iterable) else [layers]
    for layer in named:
        is_number = hasattr(layer, "__index__") and type(layer) is not bool
        if not is_number or not -depth <= layer < depth:
            raise InputError(
                f"layers must be numbers from 0 to {depth - 1} (or -1 for the last), as [1, -1], "
                f"got {layer!r}"
            )
    return {int(layer) % depth for layer in named}
