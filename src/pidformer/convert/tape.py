"""State for loops over depth that are not ours.

A Hugging Face model calls its layers itself and hands each the keyword arguments it was given. So
each forward pass gets a tape of its own among them: layer l reads what layer l - 1 wrote. A place
is written once. When activation checkpointing runs a layer again for the backward pass, it is
handed the same tape, finds what the layer before it wrote, and writes nothing: the same numbers,
the same gradients.
"""

import torch
from torch import Tensor

from pidformer.control.pid import PIDState
from pidformer.errors import InputError


class Tape:
    """The states of one forward pass, by layer; `keeps_weights`: attention gives its weights."""

    def __init__(self, *, keeps_weights: bool = False) -> None:
        self.keeps_weights = keeps_weights
        self._states: dict[int, PIDState] = {}
        self._noted: dict[int, Tensor] = {}

    def read(self, layer: int) -> PIDState | None:
        """What layer `layer - 1` wrote; None for the first layer."""
        if layer == 0:
            return None
        if layer - 1 not in self._states:
            raise InputError(
                f"layer {layer} ran without layer {layer - 1} before it; a controller needs every "
                "layer in every forward pass (turn off layer drop and early exit)"
            )
        return self._states[layer - 1]

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

    def own_values(self, layer: int, value: Tensor, count: int) -> Tensor:
        """The values (B, Hkv, N, D) of the N = `count` tokens that ask.

        Those that the layer noted; without a cache, all that attention is given.
        """
        own = self._noted.pop(layer, value)
        if own.shape[-2] != count:
            raise InputError(
                f"the cache of layer {layer} gave {own.shape[-2]} values to {count} tokens; a "
                "controller needs a cache of transformers, with an update method"
            )
        return own
