"""Jobs over processes: each imports once, uses one core and takes jobs until none is left."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pidformer.demo.measure import Job, work
from pidformer.errors import InputError
from pidformer.results import Record
from pidformer.training.loop import Interrupted

MOST = 4
"""Processes at most: each holds about half a gigabyte."""
_TICK = 0.3

Done = tuple[Job, list[Record]]


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_jobs(jobs: Sequence[Job], workers: int) -> Iterator[Done | None]:
    """Each job with its records as it ends, and None now and then in between.

    With one worker the jobs run here, one after the other. Leaving the loop early ends the
    processes, which save the runs they are at.
    """
    if workers <= 1:
        for job in jobs:
            yield None
            yield job, work(job)
        return
    context = multiprocessing.get_context("spawn")
    tasks, answers = context.SimpleQueue(), context.Queue()
    for task in [*jobs, *[None] * workers]:
        tasks.put(task)
    pool = [
        context.Process(target=_serve, args=(tasks, answers), daemon=True) for _ in range(workers)
    ]
    try:
        for process in pool:
            process.start()
        for _ in jobs:
            yield from _next_answer(answers, pool)
    finally:
        for process in pool:
            process.terminate()
        for process in pool:
            process.join()


def _next_answer(answers: Any, pool: Sequence[Any]) -> Iterator[Done | None]:
    while True:
        yield None
        try:
            job, records, error = answers.get(timeout=_TICK)
        except queue.Empty:
            for process in pool:
                if process.exitcode:
                    raise InputError(
                        f"a process ended with code {process.exitcode} (out of memory?); "
                        "run the same command to go on"
                    ) from None
            continue
        if isinstance(error, InputError):
            raise error
        if error is not None:
            raise RuntimeError(f"{job} failed:\n{error}")
        yield job, records
        return


def _serve(tasks: Any, answers: Any) -> None:
    """A process: take jobs until there is none, or nobody to answer to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, and sends SIGTERM
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive() and (job := tasks.get()) is not None:
        try:
            answers.put((job, work(job), None))
        except Interrupted:
            return
        except InputError as error:
            answers.put((job, [], error))
        except Exception:
            answers.put((job, [], traceback.format_exc()))
