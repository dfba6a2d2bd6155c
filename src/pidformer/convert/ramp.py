"""Fine-tuning without a shock: gains that grow from zero over the first part of training."""

import importlib
from dataclasses import dataclass
from typing import Any

from torch import nn

from pidformer.errors import InputError
from pidformer.nn.gains import controlled_attention, set_gain_share


@dataclass(frozen=True, kw_only=True)
class GainRamp:
    """The share of its gains with which a controller acts, at progress t in [0, 1] of training:

        all layers at once:    min(1, t / share)
        by layer, l of L:      min(1, max(0, L t / share - l))

    By layer, each takes its turn: the first is there before the second begins.
    """

    share: float = 0.3
    """The share of training after which the gains are whole."""
    by_layer: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise InputError(
                f"a gain ramp must take a share of training in [0, 1], got {self.share}; a longer "
                "one would end after training, with gains that are not the model's"
            )

    def shares(self, progress: float, layers: int) -> list[float]:
        """One per layer."""
        done = progress / self.share if self.share else 1.0
        if self.by_layer and self.share:
            return [min(1.0, max(0.0, layers * done - layer)) for layer in range(layers)]
        return [min(1.0, done)] * layers

    def apply(self, model: nn.Module, progress: float) -> None:
        """Put a model's controllers where they belong at `progress`."""
        set_gain_share(model, self.shares(progress, len(controlled_attention(model))))

    def trainer_callback(self) -> Any:
        """A callback for the Trainer of transformers."""
        kind: Any = importlib.import_module("transformers").TrainerCallback
        ramp = self

        class GainRampCallback(kind):
            def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
                ramp.apply(given["model"], state.global_step / max(1, state.max_steps))

            def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
                set_gain_share(given["model"], None)

        return GainRampCallback()

    def lightning_callback(self) -> Any:
        """A callback for Lightning's Trainer."""
        kind: Any = _lightning_callback()
        ramp = self

        class GainRampCallback(kind):
            def on_train_batch_start(self, trainer: Any, module: Any, *_: Any) -> None:
                steps = float(trainer.estimated_stepping_batches)
                if steps == float("inf"):
                    raise InputError("a gain ramp needs an end of training; give Trainer max_steps")
                ramp.apply(module, trainer.global_step / max(1.0, steps))

            def on_train_end(self, trainer: Any, module: Any) -> None:
                set_gain_share(module, None)

        return GainRampCallback()


def _lightning_callback() -> Any:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise InputError("a Lightning callback needs Lightning: pip install lightning")
