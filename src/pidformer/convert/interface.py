"""Attention with a controller in Hugging Face's attention interface, under the name "pidformer".

Hugging Face's own scaled dot-product attention, then the control. The state travels on a `Tape`:
a Hugging Face model calls its layers itself and hands each the keyword arguments it was given, so
each forward pass gets a tape of its own among them. Layer l reads what layer l - 1 wrote. A place
is written once: when activation checkpointing runs a layer again for the backward pass, it is
handed the same tape, finds what the layer before it wrote, and writes nothing. The same numbers,
the same gradients.
"""
# B batch, H heads, Hkv key/value heads, N tokens, M keys, D head dim

import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, Cache, EncoderDecoderCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from pidformer.control.pid import PIDState
from pidformer.convert.families import FAMILIES, PROJECTIONS
from pidformer.errors import InputError
from pidformer.nn.gains import acting_gains
from pidformer.ops.attention import feed_back, mixed_values, of_queries

NAME = "pidformer"
KEYWORD = "pid_tape"
_waiting = threading.local()


class Tape:
    """The states of one forward pass, by layer; `keeps_weights`: attention gives its weights."""

    def __init__(self, *, keeps_weights: bool = False) -> None:
        self.keeps_weights = keeps_weights
        self._states: dict[int, PIDState] = {}
        self._noted: dict[int, Tensor] = {}

    def __bool__(self) -> bool:
        """For models that hand it down as `output_attentions`."""
        return self.keeps_weights

    def read(self, layer: int, device: torch.device) -> PIDState | None:
        """What layer `layer - 1` wrote, on this layer's device; None for the first layer."""
        if layer == 0:
            return None
        if layer - 1 not in self._states:
            raise InputError(
                f"layer {layer} ran without layer {layer - 1} before it; a controller needs every "
                "layer in every forward pass (turn off layer drop and early exit)"
            )
        state = self._states[layer - 1]
        if state.initial.device == device:
            return state
        return type(state)(*(part.to(device) for part in state))

    def write(self, layer: int, state: PIDState) -> None:
        """Keep the state after `layer`; a second time changes nothing."""
        if layer in self._states:
            return
        if not torch.is_grad_enabled():  # nothing will run again: one state is enough
            self._states.clear()
        self._states[layer] = state

    def note(self, layer: int, value: Tensor) -> None:
        """Keep the values that a layer puts into its cache, until its attention asks for them."""
        self._noted[layer] = value

    def own_values(self, layer: int, value: Tensor | None, count: int) -> Tensor:
        """The values (B, Hkv, N, D) of the N = `count` tokens that ask; without a cache, all."""
        own = self._noted.pop(layer, value)
        assert own is not None
        if own.shape[-2] != count:
            raise InputError(
                f"the cache of layer {layer} gave {own.shape[-2]} values to {count} tokens; a "
                "controller needs a cache of transformers, with an update method"
            )
        return own


def pid_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention plus the control, (B, N, H, D), and softmax(q k^T) (B, H, N, M) where asked for.

    A query head's value is that of its group. A module without a controller just attends.
    """
    called, tape = handed()
    tape = options.pop(KEYWORD, tape if called is module else None)
    wants_weights = bool(options.pop("output_attentions", False))
    wants_weights = wants_weights or (tape is not None and tape.keeps_weights)
    if tape is None and hasattr(getattr(module, "config", None), "pidformer"):
        raise without_controller(module)
    is_controlled = hasattr(module, "pid_layer")
    if is_controlled:
        assert tape is not None  # a converted model's configuration says so
        state, gains = tape.read(module.pid_layer, value.device), acting_gains(module)
        own = tape.own_values(module.pid_layer, value, query.shape[2])
        if own is value:  # what a cache keeps is mixed already
            value = mixed_values(value, state, gains)
    is_capped = options.get("softcap") is not None  # which no fused kernel has
    weights = None
    if wants_weights or is_capped:
        weights = _weights(module, query, key, attention_mask, options)
    if weights is not None and is_capped:
        kept = F.dropout(weights, options.get("dropout", 0.0), module.training)
        out = (kept @ of_queries(value, query)).transpose(1, 2).contiguous()
    else:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if not is_controlled:
        return out, weights
    out, after = feed_back(out.transpose(1, 2), own, state, gains, module.first_layer)
    assert tape is not None and after is not None
    tape.write(module.pid_layer, after)
    return out.transpose(1, 2).contiguous(), weights


def without_controller(module: Any) -> InputError:
    """The error for a module or a configuration that lacks its controller."""
    return InputError(
        f"{type(module).__name__} runs without the controller of its model: it was called by "
        "itself, or the model was loaded by transformers. Load it with "
        'pf.from_pretrained(folder); its weights alone, with attn_implementation="sdpa"'
    )


def _weights(
    module: Any, query: Tensor, key: Tensor, mask: Tensor | None, options: dict[str, Any]
) -> Tensor:
    """softmax(q k^T scale + mask), as Hugging Face's eager attention computes it.

    With a `softcap` c, the scores s are c tanh(s / c).
    """
    is_causal = options.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    scale = options.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ of_queries(key, query).mT * scale  # (B, H, N, M)
    if (cap := options.get("softcap")) is not None:
        scores = torch.tanh(scores / cap) * cap
    if (bias := options.get("position_bias")) is not None:
        scores = scores + bias
    if mask is None and is_causal and query.shape[2] > 1:  # N queries are the first N of M keys
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask
    return scores.softmax(-1, dtype=torch.float32).to(query.dtype)


class WatchedCache:
    """A layer's view of the cache that notes on the tape which values the layer puts in.

    Those are the values of the tokens that ask. Where the cache keeps them, and what a mask shows
    of it, is the cache's own business: growing, of fixed size, sliding, padded on either side.
    """

    def __init__(self, cache: Any, tape: Tape, module: Any) -> None:
        self.cache, self.tape, self.module = cache, tape, module

    def update(self, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
        layer = self.module.pid_layer
        self.tape.note(layer, value)
        state = self.tape.read(layer, value.device)
        mixed = mixed_values(value, state, acting_gains(self.module))
        if self.cache is None:
            return key, mixed
        return self.cache.update(key, mixed, *args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["cache"], name)


def hand(module: Any, tape: Tape | None) -> None:
    """Let a tape wait until attention, inside the same call of its module, asks for it.

    It waits in the thread: others may be calling the same module.
    """
    _waiting.held = module, tape


def handed() -> tuple[Any, Tape | None]:
    """The module that was called last, and the tape that waits for it; asked again, neither."""
    found = getattr(_waiting, "held", (None, None))
    _waiting.held = None, None
    return found


def watch_cache(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Before each call of an attention module: its cache becomes a `WatchedCache`.

    The tape waits for the interface, as some modules keep their keyword arguments to themselves.
    Recomputed under checkpointing, the module is handed its own tape again.
    """
    tape = kwargs.get(KEYWORD)
    hand(module, tape)
    if tape is None:
        return args, kwargs

    def watched(given: Any) -> Any:
        if isinstance(given, EncoderDecoderCache):
            given = given.self_attention_cache
        return WatchedCache(given, tape, module) if isinstance(given, Cache) else given

    return tuple(watched(a) for a in args), {k: watched(v) for k, v in kwargs.items()}


def pid_mask(*args: Any, **options: Any) -> Tensor | None:
    """The mask of scaled dot-product attention, for models that attend through the interface."""
    kind = getattr(options.get("config"), "model_type", None)
    if FAMILIES.get(str(kind)) in PROJECTIONS:  # converted, it keeps the masks it had
        raise without_controller(options["config"])
    return sdpa_mask(*args, **options)


# Our attention, and the mask that goes with it: without one, causality would be lost. At import,
# not at conversion: a converted model may come out of a pickle, into a process that has none.
AttentionInterface.register(NAME, pid_attention_forward)
AttentionMaskInterface.register(NAME, pid_mask)
