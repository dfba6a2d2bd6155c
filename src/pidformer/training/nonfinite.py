"""A loss that is no longer a number: noticed without slowing the device down."""

from typing import Any, Literal

import torch
from torch import Tensor

from pidformer.control import DiscreteGains, PIDGains, stability_report
from pidformer.errors import InputError


class NonFiniteWatch:
    """Looks at a number of each step; "stop" ends the run with a diagnosis, "skip" drops the step.

    On a CUDA device "stop" reads the number one step late, so that the device never waits for the
    reading; no checkpoint is written in between. "skip" has to know before the update and waits.
    """

    def __init__(self, action: Literal["stop", "skip"], gains: Any, device: torch.device) -> None:
        self.action, self.gains = action, gains
        self.is_late = device.type == "cuda" and action == "stop"
        self.skipped = 0
        self._largest_norm = torch.zeros((), device=device)
        self._pending: tuple[Tensor, torch.cuda.Event, int, float] | None = None
        # Pinned, or the copy would make the host wait for the device after all.
        self._landing = torch.empty((), pin_memory=True) if self.is_late else torch.empty(())

    def accepts(self, value: Tensor, norm: Tensor, step: int, rate: float) -> bool:
        """Whether the step may update the weights."""
        if self.is_late:
            self.check_now()
            event = torch.cuda.Event()
            self._landing.copy_(value.detach(), non_blocking=True)
            event.record()
            self._pending = (self._landing, event, step, rate)
        elif not bool(torch.isfinite(value)):
            if self.action == "skip":
                self.skipped += 1
                return False
            self._stop(float(value), step, rate)
        norm = torch.nan_to_num(norm.detach(), nan=0.0, posinf=0.0)
        self._largest_norm = torch.maximum(self._largest_norm, norm.to(self._largest_norm))
        return True

    def check_now(self) -> None:
        if self._pending is not None:
            value, event, step, rate = self._pending
            self._pending = None
            event.synchronize()
            if not bool(torch.isfinite(value)):
                self._stop(float(value), step, rate)

    def _stop(self, value: float, step: int, rate: float) -> None:
        raise InputError(
            f"loss or gradient became {value} at step {step} (learning rate {rate:.3g}, largest "
            f"gradient norm before it {float(self._largest_norm):.3g}; "
            f"{describe_stability(self.gains)}); lower optim.lr, set optim.clip, or go on past "
            "such steps with train.on_nan=skip; the last checkpoint is kept"
        )


def describe_stability(gains: Any) -> str:
    """The verdict on a model's gains, the worst of its layers."""
    every = gains if isinstance(gains, tuple) else (gains,)
    layers = [layer for layer in every if type(layer) in (PIDGains, DiscreteGains)]
    if not layers:
        return "no controller" if gains is None else f"control {gains}"
    worst = max((stability_report(g) for g in set(layers)), key=lambda r: r.worst_radius)
    return f"gains {worst.verdict}"
