"""What a step was like, summed between two lines of the log."""

import time

import torch
from torch import Tensor

from pidformer.training.engine import Engine


class StepLog:
    """Sums since the last written line, on the device: reading them would stall it."""

    def __init__(self, device: torch.device) -> None:
        self.loss_sum = torch.zeros((), device=device)
        self.largest_norm = torch.zeros((), device=device)
        self.steps = 0
        self.begun = time.perf_counter()

    def state(self, engine: Engine) -> dict[str, float]:
        """What a checkpoint keeps between two lines, so that the next one is as if undisturbed."""
        return {
            "loss_sum": float(engine.sum(self.loss_sum.clone())),
            "largest_norm": float(self.largest_norm),
            "steps": self.steps,
            "seconds": time.perf_counter() - self.begun,
        }

    def restore(self, state: dict[str, float] | None, engine: Engine) -> None:
        """Put back what `state` gave; the sum over processes goes to the main one."""
        if state is None:
            return
        self.loss_sum.fill_(state["loss_sum"] if engine.is_main else 0.0)
        self.largest_norm.fill_(state["largest_norm"])
        self.steps = int(state["steps"])
        self.begun = time.perf_counter() - state["seconds"]

    def add(self, loss: Tensor, norm: Tensor) -> None:
        self.loss_sum += loss
        self.largest_norm = torch.maximum(self.largest_norm, norm.to(self.largest_norm))
        self.steps += 1
