"""Who works on which job: a lock file each, which the system lets go of when its process ends."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pidformer.files import locked


@contextmanager
def claimed(folder: Path, job: str) -> Iterator[bool]:
    """Hold a job for the block; False where another process holds it."""
    path = folder / f"{job}.lock"
    with ExitStack() as held:
        try:
            file = held.enter_context(locked(path, waits=False))
        except BlockingIOError:
            yield False
            return
        held.callback(path.unlink, missing_ok=True)
        with suppress(OSError):  # on a full disk the holder has no name
            file.truncate(0)
            file.write(f"{socket.gethostname()}, {os.getpid()}".encode())
            file.flush()
        yield True


def holder(folder: Path, job: str) -> str | None:
    """Who works on the job, if anyone does; what a killed process left is removed."""
    path = folder / f"{job}.lock"
    try:
        text = path.read_text()
        with locked(path, waits=False):
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return text
    except OSError:
        pass
    return None
