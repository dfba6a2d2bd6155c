"""How large the control is beside what attention gives, layer by layer."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from pidformer.analysis.inspection import Model, call, check_inputs, inner_model, looking
from pidformer.nn.scale import ControlMeter, ControlScale

__all__ = ["ControlScale", "control_scale"]


def control_scale(
    model: Model,
    images: Tensor,
    *,
    batch_size: int = 256,
    on_progress: Callable[[int], None] | None = None,
) -> ControlScale:
    """The size of the control and of the attention's output in every layer of our own models.

    Both are measured before the heads are merged and projected, in the model's own forward: gains
    that are learned, ramped or different by layer, and the variants of the integral, count as they
    act.
    """
    check_inputs(model, images, batch_size)
    with ControlMeter(inner_model(model)) as meter:
        for part in images.split(batch_size):
            with looking(model, part):
                call(model, part)
            if on_progress is not None:
                on_progress(len(part))
    return meter.scale()
