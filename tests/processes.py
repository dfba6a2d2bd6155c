"""Processes that begin with the libraries loaded, for tests of what a process does.

Importing torch and timm takes seconds, which each process that a test starts would pay for. These
are forked from one that has imported them and has run nothing. What importing does, or a process
that lacks something, wants `subprocess`.
"""

import atexit
import gc
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

ROOT = Path(__file__).parents[1]
COMMAND = "from pidformer.cli import main; main()"
LOADED = ["pidformer.cli", "pidformer.training.run", "pidformer.evaluation", "pidformer.reproduce"]
_context: Any = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(LOADED)
_stores: list[TCPStore] = []


class Process:
    """`python -c code *arguments`, in the folder of the repository and with one thread."""

    def __init__(self, code: str, *arguments: str | Path, **environment: str) -> None:
        self._said = tempfile.TemporaryDirectory()
        given = os.environ | {"OMP_NUM_THREADS": "1"} | environment
        words = ["-c", *map(str, arguments)]
        self._process = _context.Process(target=_run, args=(code, words, given, self._said.name))
        self._process.start()
        self.pid: int = self._process.pid
        atexit.register(self.kill)  # none outlives the tests, which would wait for it

    def poll(self) -> int | None:
        """Exit code, minus the signal that ended it, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float = 300) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            self.kill()
            raise TimeoutError(f"not done after {timeout} s: {self.stderr}")
        return code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    @property
    def stdout(self) -> str:
        """What it has printed until now."""
        return self._text("stdout")

    @property
    def stderr(self) -> str:
        return self._text("stderr")

    def _text(self, name: str) -> str:
        file = Path(self._said.name, name)
        return file.read_text() if file.exists() else ""


def _run(code: str, words: list[str], environment: dict[str, str], said: str) -> None:
    gc.freeze()  # the libraries are no garbage
    for stream, name in ((sys.stdout, "stdout"), (sys.stderr, "stderr")):
        os.dup2(os.open(os.path.join(said, name), os.O_CREAT | os.O_WRONLY), stream.fileno())
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.argv = words
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


def warm(patch: Any) -> None:
    """Let processes that the package spawns begin with the libraries loaded too."""
    cold = multiprocessing.get_context
    given = lambda kind=None: _context if kind == "spawn" else cold(kind)  # noqa: E731
    patch.setattr(multiprocessing, "get_context", given)


def two(code: str, *arguments: str | Path) -> tuple[Process, ...]:
    """Two processes of one group."""
    return several(2, code, *arguments)


def several(count: int, code: str, *arguments: str | Path) -> tuple[Process, ...]:
    """Processes of one group, as `torchrun --nproc_per_node COUNT` starts them."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _stores.append(store)  # the launcher's, which outlives each process
    group = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    group |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    ranks = map(str, range(count))
    return tuple(Process(code, *arguments, RANK=r, LOCAL_RANK=r, **group) for r in ranks)


def ends_well(*processes: Process) -> str:
    """What they printed together."""
    for process in processes:
        assert process.wait() == 0, process.stderr[-4000:]
    return "".join(process.stdout for process in processes)
