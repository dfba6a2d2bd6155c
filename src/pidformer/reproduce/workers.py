"""The same work in several processes of this machine, as if each had been started by hand."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from pidformer.devices import usable_cores
from pidformer.errors import InputError
from pidformer.interrupts import Interrupted, raise_for, unhurried

TICK = 1.0


def in_processes(work: Callable[[], Any], count: int) -> Iterator[Any]:
    """Call `work` in `count` fresh processes: each answer as it comes, None now and then between.

    A process that dies gives no answer. Leaving the loop early ends them; they save their runs.
    """
    context = multiprocessing.get_context("spawn")
    threads = max(1, usable_cores() // count)
    started: dict[Connection, Any] = {}
    try:
        with _without_interrupts():
            for _ in range(count):
                ours, theirs = context.Pipe(duplex=False)
                started[ours] = context.Process(target=_serve, args=(work, threads, theirs))
                started[ours].start()
                theirs.close()
        waiting = list(started)
        while waiting:
            yield None
            for end in wait(waiting, TICK):
                assert isinstance(end, Connection)
                waiting.remove(end)
                try:
                    answer = end.recv()
                except EOFError:
                    continue
                if isinstance(answer, InputError):
                    raise answer
                yield answer
    finally:
        with unhurried():
            begun = [process for process in started.values() if process.pid is not None]
            for process in begun:  # all before any is waited for: none takes on what another leaves
                process.terminate()
            for process in begun:
                process.join()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes started here ignore Ctrl-C while they import: no traceback from each of them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(work: Callable[[], Any], threads: int, answers: Connection) -> None:
    """One process: from now on a signal ends it, or the end of the process that started it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, raise_for)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        answer = work()
    except (Interrupted, KeyboardInterrupt):
        return
    except InputError as error:
        answer = error
    for number in (signal.SIGINT, signal.SIGTERM):  # once it has answered it may be ended: silently
        signal.signal(number, signal.SIG_DFL)
    answers.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
