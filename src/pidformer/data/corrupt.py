"""Broken images: counted, named once, and an error when they are too many."""

import math
import warnings
from collections.abc import Iterable
from typing import TypeVar

from pidformer.data.pictures import UnreadableImage
from pidformer.data.sources import Decodable
from pidformer.errors import InputError, some

T = TypeVar("T")


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
