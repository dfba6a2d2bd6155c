"""Several processes on one measurement, as torchrun or accelerate launch start them.

Each takes every size-th batch of the very batches that one process would take, and all get what all
have found, in order. So a record does not depend on the number of processes. Training has an engine
of its own (`training.engine`).
"""

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import distributed

from pidformer.devices import launched_device
from pidformer.errors import InputError, is_out_of_memory

T = TypeVar("T")
R = TypeVar("R")
_PATIENCE = timedelta(days=2)
"""How long a process waits for one that is slower; one that is dead is noticed at once."""
_group: Any = None


@runtime_checkable
class OwnBatches(Protocol):
    """Batches that are loaded only where they are wanted."""

    def placed(self) -> Iterator[tuple[int, Any]]:
        """This process's batches, each with the number of readable inputs before it."""
        ...

    def lost(self) -> set[int]:
        """Unreadable inputs that were met so far."""
        ...

    def learn(self, lost: set[int]) -> None:
        """Learn of those that others met, which move the places."""
        ...


def join(device: str = "auto") -> str:
    """Meet the other processes, if a launcher started several; the device that is this one's."""
    global _group
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return device
    if _group is None:
        distributed.init_process_group("gloo")
        _group = distributed.new_group(backend="gloo", timeout=_PATIENCE)
    if launched_device(device).type != "cuda":
        return device
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"


def rank() -> int:
    return 0 if _group is None else distributed.get_rank(_group)


def size() -> int:
    return 1 if _group is None else distributed.get_world_size(_group)


def is_main() -> bool:
    """Whether this process is the one that writes and speaks; also true when it is alone."""
    return rank() == 0


def speaks(line: str) -> bool:
    """Whether this process is the first to say a line that all may have to say."""
    if _group is None:
        return True
    try:
        return int(distributed.distributed_c10d._get_default_store().add(f"said {line}", 1)) == 1
    except RuntimeError:  # the process that kept count has ended
        return True


def from_main(value: T) -> T:
    """What the main process has, in all of them."""
    return gathered(value if is_main() else None)[0]  # type: ignore[return-value]


def gathered(value: T) -> list[T]:
    """What each process has, by rank."""
    if _group is None:
        return [value]
    found: list[Any] = [None] * size()
    try:
        distributed.all_gather_object(found, value, group=_group)
    except RuntimeError:  # so Gloo says that a connection is gone
        raise InputError(
            "another process of this run has ended; what was finished is kept, run the same "
            "command to go on"
        ) from None
    return found


def spread(batches: Iterable[T], work: Callable[[T, int], R]) -> list[R]:
    """work(batch, place) of every batch, in order; `place` is the number of inputs before it.

    Each process works on its share. What fails in one, fails in all.
    """
    if _group is None:
        return [work(batch, place) for place, batch in _counted(batches)]
    while True:
        own = batches if isinstance(batches, OwnBatches) else None
        mine: dict[int, R] = {}
        failure: Exception | None = None
        try:
            for place, batch in _share(batches) if own is None else own.placed():
                mine[place] = work(batch, place)
        except Exception as error:
            failure = error
        told = None if failure is None else (is_out_of_memory(failure), str(failure))
        answers = gathered((mine, own.lost() if own else set[int](), told))
        _raise_shared(failure, [answer[2] for answer in answers])
        lost = set[int]().union(*(answer[1] for answer in answers))
        if own is not None:
            own.learn(lost)
        if all(answer[1] == lost for answer in answers):  # or the places were wrong somewhere
            found = {place: result for answer in answers for place, result in answer[0].items()}
            return [found[place] for place in sorted(found)]


def _raise_shared(own: Exception | None, told: list[tuple[bool, str] | None]) -> None:
    if own is not None:
        raise own
    for failure in told:
        if failure is not None:
            is_memory, line = failure
            raise (torch.OutOfMemoryError if is_memory else InputError)(line)


def _counted(batches: Iterable[T]) -> Iterator[tuple[int, T]]:
    place = 0
    for batch in batches:
        yield place, batch
        place += _length(batch)


def _share(batches: Iterable[T]) -> Iterator[tuple[int, T]]:
    for number, (place, batch) in enumerate(_counted(batches)):
        if number % size() == rank():
            yield place, batch


def _length(batch: Any) -> int:
    """Length of a tensor, or of the first of several; 1 for what has none."""
    first = batch[0] if isinstance(batch, tuple) else batch
    return len(first) if hasattr(first, "__len__") else 1
