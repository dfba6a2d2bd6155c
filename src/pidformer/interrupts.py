"""Ctrl-C and SIGTERM end a command: soon the first time, at once the second.

The first signal raises in the main thread, and the command unwinds; training (`Stopping`) finishes
its step and saves instead. A main thread deep in C++ hears of neither, so a thread of its own,
which Python's C handler wakes at any time, ends the process at the second signal, or when
unwinding takes longer than `PATIENCE`.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 4.0
"""Seconds that a command has to unwind."""
_ONE = 0.3
"""Signals closer than this are one: a terminal and a wrapper may each send it."""
_ending = threading.Lock()
_unhurried = 0
_wakeup = -1
_owner = 0
"""The process that handles signals so; what it forks does not."""


class Interrupted(Exception):
    """A signal asked the work to end; it was saved first."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(number)
        self.number = number


class Terminated(KeyboardInterrupt):
    """SIGTERM, which unwinds as Ctrl-C does."""

    number = signal.SIGTERM


def exit_code(error: BaseException | None) -> int:
    """130 after Ctrl-C, 143 after SIGTERM: 128 plus the signal, as shells count."""
    return 128 + int(getattr(error, "number", signal.SIGINT))


def raise_for(number: int, _: FrameType | None = None) -> NoReturn:
    """A signal as an exception; a handler."""
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


class Stopping:
    """In the main thread, notes a signal, for work to end at its next stop; a second raises."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The signal that asked to stop, if one did."""
        self._since = 0.0
        self._can_wait = True

    def __enter__(self) -> Self:
        global _unhurried
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {n: signal.signal(n, self._note) for n in SIGNALS}
        _unhurried += 1
        return self

    def __exit__(self, *_: object) -> None:
        global _unhurried
        _unhurried -= 1
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A block with nothing to save, which may take minutes: the first signal raises."""
        global _unhurried
        if self.number is not None:
            raise_for(self.number)
        self._can_wait, _unhurried = False, _unhurried - 1
        try:
            yield
        finally:
            self._can_wait, _unhurried = True, _unhurried + 1

    def _note(self, number: int, _: FrameType | None) -> None:
        is_again = self.number == number and time.monotonic() - self._since > _ONE
        if is_again or not self._can_wait:
            raise_for(number)
        if self.number is None and is_handled():
            _say("stopping after this step, saved; once more to leave at once")
        self.number, self._since = number, time.monotonic()


@contextmanager
def unhurried() -> Iterator[None]:
    """A block that waits for others to save: only a second signal ends the process."""
    global _unhurried
    _unhurried += 1
    try:
        yield
    finally:
        _unhurried -= 1


def handle() -> None:
    """From now on, to the end of this process; for its main thread."""
    global _wakeup, _owner
    if is_handled() or threading.current_thread() is not threading.main_thread():
        return
    reading, _wakeup = os.pipe()
    _owner = os.getpid()
    sys.excepthook = _excepthook
    os.set_blocking(_wakeup, False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # its signals are its own
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as in a shell's background jobs
            signal.signal(number, raise_for)
    signal.set_wakeup_fd(_wakeup, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()


def is_handled() -> bool:
    return _wakeup >= 0 and _owner == os.getpid()


def _excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """One line for a signal that came before there was a command, while Python imports."""
    if issubclass(kind, KeyboardInterrupt):
        end(exit_code(error))
    sys.__excepthook__(kind, error, trace)


def end(code: int) -> NoReturn:
    """End the process now, with one line; a second caller waits for the first."""
    _ending.acquire()
    _say("terminated" if code == 128 + signal.SIGTERM else "interrupted")
    os._exit(code)


def _say(line: str) -> None:
    """A line on stderr, below a bar, whose cursor comes back."""
    shown = "\x1b[?25h\n" if os.isatty(2) else ""
    with suppress(OSError):
        os.write(2, f"{shown}pidformer: {line}\n".encode())


def _watch(reading: int) -> None:
    number, since, waits_since = 0, 0.0, 0.0
    while True:
        now = time.monotonic
        if select.select([reading], [], [], 0.1 if number else None)[0]:
            read = os.read(reading, 1)[0]
            if read == number and now() - since > _ONE:
                end(128 + number)
            if read in SIGNALS:
                number, since, waits_since = read, now(), now()
        elif _unhurried:
            waits_since = now()
        elif now() - waits_since > PATIENCE:
            end(128 + number)
