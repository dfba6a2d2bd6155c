"""Which image stands where in which batch of which process."""

import math
from dataclasses import dataclass

import numpy as np

from pidformer.data.arguments import check_counts, check_rank
from pidformer.data.randomness import Purpose, numbers
from pidformer.errors import InputError


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The order of a training epoch, the same for every process; a batch is the global batch.

    With `repeats` r each batch holds batch_size / r different images, r times over: the copies
    stand that far apart, so neighbours (which Mixup pairs) are different images. An epoch
    keeps its length and so sees 1 / r of the images.

    Images that do not fill a batch sit the epoch out; with `fills_last` they make one more, filled
    up with the epoch's first.
    """

    images: int
    batch_size: int
    repeats: int = 1
    seed: int
    rank: int
    world_size: int
    is_mixing: bool = False
    fills_last: bool = False

    def __post_init__(self) -> None:
        check_counts(batch_size=self.batch_size, seed=self.seed)
        check_rank(self.rank, self.world_size)
        if self.batch_size > self.images:
            raise InputError(
                f"batch_size {self.batch_size} is larger than the training set of {self.images} "
                "images; the last, partial batch is dropped, so choose a smaller one"
            )
        if self.batch_size % self.world_size:
            raise InputError(
                f"batch_size {self.batch_size} cannot be shared by {self.world_size} processes; "
                "it is the global batch: choose a multiple of world_size"
            )
        if self.is_mixing and self.local_size % 2:
            raise InputError(
                f"mixup and cutmix pair neighbours, so each process needs an even batch, got "
                f"{self.batch_size} / {self.world_size} = {self.local_size}; change batch_size"
            )
        if self.repeats > 1 and self.distinct < 2:
            raise InputError(
                f"batch_size {self.batch_size} must hold two or more images {self.repeats} times "
                "each; choose a larger one, or repeats=1"
            )

    @property
    def steps_per_epoch(self) -> int:
        batches = self.images / self.batch_size
        return math.ceil(batches) if self.fills_last else math.floor(batches)

    @property
    def distinct(self) -> int:
        """Different images in a batch; the last few have a copy fewer if repeats do not divide."""
        return math.ceil(self.batch_size / self.repeats)

    @property
    def local_size(self) -> int:
        return self.batch_size // self.world_size

    @property
    def local(self) -> slice:
        """This process's part of a global batch."""
        return slice(self.rank * self.local_size, (self.rank + 1) * self.local_size)

    def order(self, epoch: int) -> np.ndarray:
        """Image indices of every global batch of the epoch, int64 (steps, batch_size)."""
        shuffled = numbers(self.seed, Purpose.ORDER, epoch).permutation(self.images)
        count = self.steps_per_epoch * self.distinct
        batches = np.resize(shuffled, max(count, self.images))[:count].reshape(-1, self.distinct)
        return np.tile(batches, (1, self.repeats))[:, : self.batch_size]
