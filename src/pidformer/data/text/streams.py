"""Training batches of text: contiguous streams, each batch a function of (seed, epoch, step)."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pidformer.data import arguments
from pidformer.data.randomness import Purpose, numbers
from pidformer.data.storage import fits_in_memory
from pidformer.devices import as_device
from pidformer.errors import InputError


class TextBatch(NamedTuple):
    """Tokens (B, T) and the token after each, (B, T), int64."""

    inputs: Tensor
    targets: Tensor


class TextStreams:
    """The text cut into `batch_size` equal streams; step s holds tokens [s T, (s + 1) T) of each.

    Streams are read in order and never shuffled. `shift` starts each epoch at another offset below
    `length`, drawn from (seed, epoch), so that cuts fall elsewhere in each. This process (`rank` of
    `world_size`) yields its streams; tokens stay on the device when they fit, else each batch is
    read from the file.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        *,
        batch_size: int,
        length: int,
        seed: int = 0,
        shift: bool = False,
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
        resident: arguments.Resident = "auto",
    ) -> None:
        arguments.check_counts(length=length, seed=seed)
        arguments.check_resident(resident)
        rows = arguments.local_part(batch_size, rank, world_size)
        self.length, self.seed, self.shift = length, seed, shift
        self._stream = len(tokens) // batch_size
        spare = length - 1 if shift else 0
        self.steps_per_epoch = max(0, self._stream - 1 - spare) // length
        if self.steps_per_epoch < 1:
            raise InputError(
                f"the training text of {len(tokens)} tokens is shorter than one batch: "
                f"{batch_size} streams x {length} tokens need {batch_size * (length + 1 + spare)}; "
                "lower data.batch_size or text.length"
            )
        self._tokens = tokens[: self._stream * batch_size].reshape(batch_size, self._stream)[rows]
        self._device = as_device(device)
        if resident == "auto":
            resident = fits_in_memory(4 * self._tokens.size, self._device)
        self.is_resident = resident
        self._kept: Tensor | None = None
        if resident:
            self._kept = torch.from_numpy(self._tokens.astype(np.int32)).to(self._device)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[TextBatch]:
        arguments.check_start(epoch, start_step, self.steps_per_epoch)
        offset = 0
        if self.shift:
            offset = int(numbers(self.seed, Purpose.ORDER, epoch).integers(self.length))
        for step in range(start_step, self.steps_per_epoch):
            begin = offset + step * self.length
            window = self._window(begin, begin + self.length + 1)
            yield TextBatch(window[:, :-1], window[:, 1:])

    def most_between(self, low: int, high: int) -> int:
        """The most tokens from `low` to below `high` among a batch's targets, in any epoch."""
        inside = np.zeros(self._stream, dtype=np.int64)
        for stream in self._tokens:
            inside += (stream >= low) & (stream < high)
        before = inside.cumsum()
        return int((before[self.length :] - before[: -self.length]).max())

    def _window(self, begin: int, end: int) -> Tensor:
        if self._kept is not None:
            return self._kept[:, begin:end].long()
        window = torch.from_numpy(self._tokens[:, begin:end].astype(np.int64))
        if self._device.type == "cuda":
            window = window.pin_memory()
        return window.to(self._device, non_blocking=True)
