"""State for loops over depth that are not ours.

A Hugging Face model calls its layers itself and hands each the keyword arguments it was given. So
each forward pass gets a tape of its own among them: layer l reads what layer l - 1 wrote. A place
is written once. When activation checkpointing runs a layer again for the backward pass, it is
handed the same tape, finds what the layer before it wrote, and writes nothing: the same numbers,
the same gradients.
"""

from __future__ import annotations

import torch

from pidformer.control.pid import PIDState
from pidformer.errors import InputError


class Tape:
    """The states of one forward pass, by layer."""

    def __init__(self) -> None:
        self._states: dict[int, PIDState] = {}

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
