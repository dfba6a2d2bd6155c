"""A function over many blocks in several processes, in order, with only a few under way."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
WORTH_IT = 64 * 2**20
"""Bytes of text that are worth starting processes for."""


def choose_workers(paths: list[Path]) -> int:
    """Processes for these files: 1 below 64 MB, else one a core (16 at most)."""
    total = sum(p.stat().st_size * (4 if p.suffix in (".xz", ".gz") else 1) for p in paths)
    return min(16, os.cpu_count() or 1) if total >= WORTH_IT else 1


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Iterator[Result]:
    """function(item) for each, in order. The items are read as they are needed, never all."""
    if workers == 1:
        yield from map(function, items)
        return
    pending: deque[Future[Any]] = deque()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
