"""A controller in attention that a Hugging Face model computes by itself, past the interface.

Such attention still puts its values into a cache, and its merged heads through a projection. So it
is handed a cache that notes the values (and, where the model has none, keeps nothing), and the
control is added to what goes into the projection. Layers that hand attention no further keyword
arguments do hand down `output_attentions`: there the tape travels as that.
"""
# B batch, H heads, N tokens, D head dim

import inspect
from typing import Any

from torch import Tensor
from transformers import EncoderDecoderCache

from pidformer.convert.families import PROJECTIONS
from pidformer.convert.interface import (
    KEYWORD,
    Tape,
    WatchedCache,
    hand,
    handed,
    without_controller,
)
from pidformer.nn.gains import acting_gains
from pidformer.ops.attention import feed_back

ASKED = "output_attentions"
CACHES = ("layer_past", "past_key_values")


def is_own(attention: Any) -> bool:
    """Whether a module computes attention by itself."""
    return type(attention).__name__ in PROJECTIONS


def watch_values(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Before each call of an attention module: a `WatchedCache`, and the tape at its projection.

    The projection is the one of this moment: an adapter may have taken the place of another.
    """
    places = (kwargs.get(KEYWORD), kwargs.get(ASKED))
    tape = next((place for place in places if isinstance(place, Tape)), None)
    if tape is None:
        raise without_controller(module)
    projection = getattr(module, PROJECTIONS[type(module).__name__])
    if add_control not in projection._forward_pre_hooks.values():
        projection.register_forward_pre_hook(add_control)
    hand(module, tape)
    name = next(name for name in CACHES if name in inspect.signature(module.forward).parameters)
    cache = kwargs.get(name)
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    return args, {**kwargs, name: WatchedCache(cache, tape, module)}


def add_control(projection: Any, args: tuple[Tensor]) -> tuple[Tensor] | None:
    """Before the projection of merged heads (B, N, H D): the control of the layer."""
    module, tape = handed()
    if tape is None:  # an adapter around it was given the control
        return None
    layer, (merged,) = module.pid_layer, args
    own = tape.own_values(layer, None, merged.shape[1])
    heads = merged.unflatten(-1, (-1, own.shape[-1])).transpose(1, 2)  # (B, H, N, D)
    gains, state = acting_gains(module), tape.read(layer, own.device)
    out, after = feed_back(heads, own, state, gains, module.first_layer)
    assert after is not None
    tape.write(layer, after)
    return (out.transpose(1, 2).flatten(2),)
