"""What a loader is given, checked: one line for the user who gave something else."""

import math
from collections.abc import Sequence
from typing import Literal

from pidformer.errors import InputError, shortened
from pidformer.fields import is_number

Resident = Literal["auto"] | bool
_FROM_ZERO = ("seed", "rank", "num_workers", "epoch", "start_step", "padding")


def check_counts(**counts: int) -> None:
    """Each must be a whole number; sizes from 1, seeds and the like from 0."""
    for name, value in counts.items():
        smallest = 0 if name in _FROM_ZERO else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
            raise InputError(f"{name} must be a whole number >= {smallest}, got {shortened(value)}")


def check_share(name: str, value: float, largest: float = 1.0) -> None:
    """A finite number from 0 to `largest`."""
    if not is_number(value) or not 0 <= value <= largest:
        allowed = "0 or more" if largest == math.inf else f"in [0, {largest:g}]"
        raise InputError(f"{name} must be a number {allowed}, got {shortened(value)}")


def as_interval(name: str, value: object, largest: float = math.inf) -> tuple[float, float]:
    """Two numbers 0 < low <= high, none of them above `largest`."""
    pair = tuple(value) if isinstance(value, list | tuple) else ()
    is_pair = len(pair) == 2 and all(map(is_number, pair))
    if not is_pair or not 0 < pair[0] <= pair[1] <= largest:
        limit = "" if largest == math.inf else f" <= {largest:g}"
        raise InputError(
            f"{name} must be two numbers 0 < low <= high{limit}, got {shortened(value)}"
        )
    return pair


def check_start(epoch: int, start_step: int, steps_per_epoch: int) -> None:
    check_counts(epoch=epoch, start_step=start_step)
    if start_step > steps_per_epoch:
        raise InputError(
            f"start_step must be at most the {steps_per_epoch} steps of an epoch, got "
            f"{start_step}; is the checkpoint from another batch size?"
        )


def check_rank(rank: int, world_size: int) -> None:
    check_counts(rank=rank, world_size=world_size)
    if rank >= world_size:
        raise InputError(f"rank must be below world_size {world_size}, got {rank}")


def local_part(batch_size: int, rank: int, world_size: int) -> slice:
    """The rows of a global batch that process `rank` of `world_size` has."""
    check_counts(batch_size=batch_size)
    check_rank(rank, world_size)
    if batch_size % world_size:
        raise InputError(
            f"batch_size {batch_size} cannot be shared by {world_size} processes; "
            "it is the global batch: choose a multiple of world_size"
        )
    share = batch_size // world_size
    return slice(rank * share, (rank + 1) * share)


def check_resident(resident: Resident) -> None:
    if resident != "auto" and not isinstance(resident, bool):
        raise InputError(f"resident must be 'auto', true or false, got {resident!r}")


def check_colour(name: str, values: Sequence[float], channels: int) -> None:
    if len(values) != channels:
        raise InputError(
            f"{name} must have {channels} value(s), one for each channel of the images, "
            f"got {len(values)}"
        )
