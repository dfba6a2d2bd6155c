"""What all loaders share: members kept on the device or streamed, the order of batches, resuming.

A subclass says how a worker turns a member into tensors, how kept tensors are augmented in
batches, and how the tensors of either way become a batch.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypedDict, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pidformer.data import arguments
from pidformer.data.pictures import UnreadableImage
from pidformer.data.randomness import Purpose, numbers
from pidformer.data.sources import Decodable, Fetchable
from pidformer.data.storage import decode_all
from pidformer.devices import as_device, usable_cores
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
    resident: arguments.Resident
    """Whether the decoded set is kept on the device; "auto", the default, where it fits."""
    rank: int
    """This process, of `world_size` (1 by default)."""
    world_size: int


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


class Samples(Dataset[Loaded], Generic[T]):
    """Batches by place, whichever worker makes them; the next member replaces an unreadable one."""

    def __init__(self, source: Decodable[T], make: Callable[..., Tensors], attempts: int) -> None:
        self._source, self._make, self._attempts = source, make, attempts

    def __getitem__(self, places: list[Place]) -> Loaded:
        samples: list[Tensors] = []
        indices: list[int] = []
        unreadable: set[int] = set()
        if isinstance(self._source, Fetchable):
            self._source.fetch([index for index, *_ in places])
        for first, *where in places:
            for step in range(self._attempts):
                index = (first + step) % len(self._source)
                try:
                    member = self._source.decode(index)
                except UnreadableImage:
                    unreadable.add(index)
                    continue
                except InputError as error:  # told in the process that listens
                    return Loaded((), [], [], str(error))
                samples.append(self._make(member, index, *where))
                indices.append(index)
                break
        columns = zip(*samples, strict=True)
        return Loaded(tuple(map(torch.stack, columns)), indices, sorted(unreadable))


class Loader(Generic[T]):
    """Members of a set, kept on the device or streamed: every world_size-th.

    Unreadable members are counted, up to `corrupt_limit` of the set. Worker processes only report
    them; the process that iterates keeps count.
    """

    _readable: np.ndarray  # rows of `_kept`

    def __init__(
        self,
        source: Decodable[T],
        *,
        consequence: str,
        device: str | torch.device = "cpu",
        num_workers: int = 0,
        corrupt_limit: float = 0.001,
        resident: arguments.Resident = "auto",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        arguments.check_counts(num_workers=num_workers)
        arguments.check_rank(rank, world_size)
        arguments.check_resident(resident)
        if not isinstance(corrupt_limit, int | float) or not 0 <= corrupt_limit <= 1:
            raise InputError(f"corrupt_limit must be a share in [0, 1], got {corrupt_limit!r}")
        self.num_classes = len(source.classes)
        self._source, self._consequence = source, consequence
        self._indices = np.arange(rank, len(source), world_size)
        self._num_workers = min(num_workers, usable_cores())  # batches do not depend on it
        self._device, self._resident = as_device(device), resident
        self._rank, self._world_size = rank, world_size
        self._corrupt_limit, self._unreadable = corrupt_limit, set[int]()
        self._kept: Tensors = ()  # each (N, ...); none when streamed

    @property
    def is_resident(self) -> bool:
        """Whether the decoded set is kept on the device."""
        return bool(self._kept)

    @property
    def skipped(self) -> int:
        """Unreadable members met so far."""
        return len(self._unreadable)

    @property
    def _allowed(self) -> int:
        """How many may be unreadable; never all."""
        count = len(self._source)
        return min(math.floor(self._corrupt_limit * count + 1e-9), count - 1)  # 0.29 * 100 < 29

    def _count(self, unreadable: Iterable[int]) -> None:
        """Warn of those not met before; InputError when the set has more than allowed."""
        new = sorted(set(unreadable) - self._unreadable)
        if not new:
            return
        self._unreadable.update(new)
        if self.skipped > self._allowed:
            raise InputError(
                f"{self.skipped} of {len(self._source)} images cannot be read, "
                f"corrupt_limit={self._corrupt_limit:g} allows {self._allowed}: "
                f"{self._names(sorted(self._unreadable))}; `pidformer data check` says why: repair "
                "the set or raise the limit"
            )
        warnings.warn(
            f"{len(new)} unreadable image(s), {self._consequence}: {self._names(new)}", stacklevel=3
        )

    def _names(self, indices: list[int]) -> str:
        return some([self._source.name(index) for index in indices], 10)

    def _keep(self, read: Callable[[T], tuple[np.ndarray, ...]], *shapes: tuple[int, ...]) -> None:
        """Decode every member into its row of one tensor per shape, uint8 (N, *shape)."""
        sizes = ((len(self._indices), *shape) for shape in shapes)
        kept = tuple(torch.zeros(s, dtype=torch.uint8, device=self._device) for s in sizes)
        is_shown = self._rank == 0
        unreadable = decode_all(self._source, self._indices, read, kept, show_progress=is_shown)
        self._count(unreadable)
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
            self._count(loaded.unreadable)
            if loaded.tensors:
                moved = (tensor.to(self._device, non_blocking=True) for tensor in loaded.tensors)
                yield loaded._replace(tensors=tuple(moved))


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
        arguments.check_counts(batch_size=self.batch_size, seed=self.seed)
        if self.batch_size > self.images:
            raise InputError(
                f"batch_size {self.batch_size} is larger than the training set of {self.images} "
                "images, whose last, partial batch is dropped; give a smaller data.batch_size"
            )
        local_size = self.local.stop - self.local.start
        if self.is_mixing and local_size % 2:
            raise InputError(
                f"mixup and cutmix pair neighbours, so each process needs an even batch, got "
                f"{self.batch_size} / {self.world_size} = {local_size}; change batch_size"
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
    def local(self) -> slice:
        """This process's part of a global batch."""
        return arguments.local_part(self.batch_size, self.rank, self.world_size)

    def order(self, epoch: int) -> np.ndarray:
        """Image indices of every global batch of the epoch, int64 (steps, batch_size)."""
        shuffled = numbers(self.seed, Purpose.ORDER, epoch).permutation(self.images)
        count = self.steps_per_epoch * self.distinct
        batches = np.resize(shuffled, max(count, self.images))[:count].reshape(-1, self.distinct)
        return np.tile(batches, (1, self.repeats))[:, : self.batch_size]


class TrainLoader(Loader[T]):
    """Shuffled batches of one process, by a plan; the next member replaces an unreadable one."""

    def __init__(
        self,
        source: Decodable[T],
        *,
        noun: str,
        batch_size: int,
        seed: int,
        repeats: int = 1,
        is_mixing: bool = False,
        fills_last: bool = False,
        **options: Unpack[Options],
    ) -> None:
        consequence = f"the next readable {noun} takes its place"
        super().__init__(source, consequence=consequence, **options)
        self._indices = np.arange(len(source))
        self._plan = BatchPlan(
            images=len(source),
            batch_size=batch_size,
            repeats=repeats,
            seed=seed,
            rank=self._rank,
            world_size=self._world_size,
            is_mixing=is_mixing,
            fills_last=fills_last,
        )

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
        return self._plan.steps_per_epoch

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from `start_step` on."""
        arguments.check_start(epoch, start_step, self.steps_per_epoch)
        order = self._plan.order(epoch)[start_step:, self._plan.local]
        ways = self._from_device if self.is_resident else self._from_workers
        made = enumerate(ways(order, epoch, start_step), start_step)
        return (self._finished(tensors, epoch, step) for step, tensors in made)

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
        # One attempt more than are allowed: past them the count stops the run anyway.
        for loaded in self._stream(self._make(), places, self._allowed + 1):
            yield loaded.tensors


def groups(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """`rows` in order, `size` at a time; the last group may be smaller."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]
