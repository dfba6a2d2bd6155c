"""What all loaders share: members kept on the device or streamed from workers, epochs, resuming.

A subclass says how a worker turns a member into tensors, how kept tensors are augmented in
batches, and how the tensors of either way become a batch.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypedDict, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pidformer.data.arguments import check_counts, check_start
from pidformer.data.pictures import UnreadableImage
from pidformer.data.plan import BatchPlan
from pidformer.data.sources import Decodable
from pidformer.data.storage import decode_all
from pidformer.devices import as_device
from pidformer.errors import InputError, some

T = TypeVar("T")
Tensors = tuple[Tensor, ...]
Place = tuple[int, ...]
"""(index,), or (index, epoch, step, position in the global batch) for training."""


class Options(TypedDict, total=False):
    """What every loader may be given."""

    device: str | torch.device
    """Where batches are made; the CPU by default."""
    num_workers: int
    """Processes that decode what is streamed; 0, the default, decodes in this one."""
    corrupt_limit: float
    """Share of the set that may be unreadable, 0.001 by default."""


class Batch(NamedTuple):
    """Images (B, C, S, S) in [0, 1] and their targets: labels (B, ...) or probabilities (B, K)."""

    images: Tensor
    targets: Tensor


class Loaded(NamedTuple):
    """A batch as a worker hands it over: tensors (B, ...), indices, those that are unreadable."""

    tensors: Tensors
    indices: list[int]
    unreadable: list[int]
    problem: str = ""


class CorruptTally:
    """The unreadable images that one loader has met.

    Worker processes only report indices; the tally lives in the process that iterates.
    """

    def __init__(self, source: Decodable[object], limit: float, consequence: str) -> None:
        if not isinstance(limit, int | float) or not 0 <= limit <= 1:
            raise InputError(f"corrupt_limit must be a share in [0, 1], got {limit!r}")
        self._source = source
        self._limit = limit
        self._consequence = consequence
        self._met: set[int] = set()

    @property
    def allowed(self) -> int:
        """How many may be unreadable; never all."""
        count = len(self._source)
        return min(math.floor(self._limit * count + 1e-9), count - 1)  # 0.29 * 100 is 28.99...

    def __len__(self) -> int:
        return len(self._met)

    def add(self, indices: Iterable[int]) -> None:
        """Warn of those not met before; InputError when the set has more than allowed."""
        new = sorted(set(indices) - self._met)
        if not new:
            return
        self._met.update(new)
        if len(self._met) > self.allowed:
            raise InputError(
                f"{len(self._met)} of {len(self._source)} images cannot be read, "
                f"corrupt_limit={self._limit:g} allows {self.allowed}: "
                f"{self._names(sorted(self._met))}; repair the set or raise the limit"
            )
        warnings.warn(
            f"{len(new)} unreadable image(s), {self._consequence}: {self._names(new)}",
            stacklevel=3,
        )

    def _names(self, indices: list[int]) -> str:
        return some([self._source.name(index) for index in indices], 10)


def first_readable(
    source: Decodable[T], index: int, attempts: int
) -> tuple[T | None, int, list[int]]:
    """The image at `index` or the next that can be read, its index, and those that cannot."""
    unreadable: list[int] = []
    for step in range(min(attempts, len(source))):
        place = (index + step) % len(source)
        try:
            return source.decode(place), place, unreadable
        except UnreadableImage:
            unreadable.append(place)
    return None, index, unreadable


class Samples(Dataset[Loaded], Generic[T]):
    """Batches by the places of their samples: the same whichever worker makes them."""

    def __init__(self, source: Decodable[T], make: Callable[..., Tensors], attempts: int) -> None:
        self._source, self._make, self._attempts = source, make, attempts

    def __getitem__(self, places: list[Place]) -> Loaded:
        samples: list[Tensors] = []
        indices: list[int] = []
        unreadable: set[int] = set()
        for index, *where in places:
            try:
                found, index, broken = first_readable(self._source, index, self._attempts)
            except InputError as error:  # told in the process that listens
                return Loaded((), [], [], str(error))
            unreadable.update(broken)
            if found is not None:
                samples.append(self._make(found, index, *where))
                indices.append(index)
        columns = zip(*samples, strict=True)
        return Loaded(tuple(map(torch.stack, columns)), indices, sorted(unreadable))


class Loader(Generic[T]):
    """The members `indices` of a set, kept on the device or streamed.

    Unreadable members are counted, up to `corrupt_limit` of the set.
    """

    def __init__(
        self,
        source: Decodable[T],
        indices: np.ndarray,
        *,
        consequence: str,
        device: str | torch.device = "cpu",
        num_workers: int = 0,
        corrupt_limit: float = 0.001,
    ) -> None:
        check_counts(num_workers=num_workers)
        self.num_classes = len(source.classes)
        self._source, self._indices = source, indices
        self._device = as_device(device)
        self._num_workers = num_workers
        self._tally = CorruptTally(source, corrupt_limit, consequence)
        self._kept: Tensors = ()  # each (N, ...); none when streamed
        self._readable = np.arange(len(indices))  # rows of `_kept`

    @property
    def is_resident(self) -> bool:
        """Whether the decoded set is kept on the device."""
        return bool(self._kept)

    @property
    def skipped(self) -> int:
        """Unreadable members met so far."""
        return len(self._tally)

    def _keep(
        self,
        read: Callable[[T], tuple[np.ndarray, ...]],
        *shapes: tuple[int, ...],
        show_progress: bool,
    ) -> None:
        """Decode every member into its row of one tensor per shape, uint8 (N, *shape)."""
        sizes = ((len(self._indices), *shape) for shape in shapes)
        kept = tuple(torch.zeros(s, dtype=torch.uint8, device=self._device) for s in sizes)
        unreadable = decode_all(
            self._source, self._indices, read, kept, show_progress=show_progress
        )
        self._tally.add(unreadable)
        self._readable = np.flatnonzero(~np.isin(self._indices, unreadable))
        self._kept = kept

    def _rows(self, rows: np.ndarray) -> Tensors:
        """Kept members, each tensor (len(rows), ...)."""
        index = torch.from_numpy(rows).to(self._device)
        return tuple(tensor[index] for tensor in self._kept)

    def _stream(
        self, make: Callable[..., Tensors], places: Iterable[list[Place]], attempts: int = 1
    ) -> Iterator[Loaded]:
        """The samples of each batch of places, on the device; a batch without any is left out."""
        loader = DataLoader(
            Samples(self._source, make, attempts),
            batch_size=None,
            sampler=places,
            num_workers=self._num_workers,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # or it would draw from the caller's global one
        )
        for loaded in loader:
            if loaded.problem:
                raise InputError(loaded.problem)
            self._tally.add(loaded.unreadable)
            if loaded.tensors:
                moved = (tensor.to(self._device, non_blocking=True) for tensor in loaded.tensors)
                yield loaded._replace(tensors=tuple(moved))


class TrainLoader(Loader[T]):
    """Shuffled batches of one process, in the order of a plan.

    An unreadable member is replaced by the next readable one.
    """

    def __init__(
        self,
        source: Decodable[T],
        plan: BatchPlan,
        *,
        noun: str,
        **options: Unpack[Options],
    ) -> None:
        consequence = f"the next readable {noun} takes its place"
        super().__init__(source, np.arange(len(source)), consequence=consequence, **options)
        self._plan = plan

    def _make(self) -> Callable[..., Tensors]:
        """The function that workers run: (member, index, epoch, step, position) to tensors."""
        raise NotImplementedError

    def _augmented(self, tensors: Tensors, epoch: int, step: int) -> Tensors:
        """The same for a batch of kept tensors."""
        raise NotImplementedError

    def _finished(self, tensors: Tensors, epoch: int, step: int) -> Batch:
        """The steps that both ways of loading share."""
        raise NotImplementedError

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return self._plan.steps_per_epoch

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from `start_step` on."""
        check_start(epoch, start_step, self.steps_per_epoch)
        return self._batches(epoch, start_step)

    def _batches(self, epoch: int, start_step: int) -> Iterator[Batch]:
        order = self._plan.order(epoch)[start_step:, self._plan.local]
        ways = self._from_device if self.is_resident else self._from_workers
        for step, tensors in enumerate(ways(order, epoch, start_step), start_step):
            yield self._finished(tensors, epoch, step)

    def _from_device(self, order: np.ndarray, epoch: int, start_step: int) -> Iterator[Tensors]:
        # For each row itself or the next readable one.
        after = np.searchsorted(self._readable, np.arange(len(self._indices)))
        rows = self._readable[after % len(self._readable)][order]
        index = torch.from_numpy(rows).to(self._device, non_blocking=True)
        for step, row in enumerate(index, start_step):
            yield self._augmented(tuple(tensor[row] for tensor in self._kept), epoch, step)

    def _from_workers(self, order: np.ndarray, epoch: int, start_step: int) -> Iterator[Tensors]:
        first = self._plan.local.start
        places: Iterator[list[Place]] = (  # made as they are needed: ImageNet has a million
            [(index, epoch, step, place) for place, index in enumerate(batch.tolist(), first)]
            for step, batch in enumerate(order, start_step)
        )
        # One attempt more than are allowed: past them the tally stops the run anyway.
        for loaded in self._stream(self._make(), places, self._tally.allowed + 1):
            yield loaded.tensors


def groups(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """`rows` in order, `size` at a time; the last group may be smaller."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]
