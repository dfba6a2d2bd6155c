"""What a person sees of a run: a bar on a terminal, plain lines elsewhere, TensorBoard if asked."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from pidformer.display import Display
from pidformer.errors import InputError


class TrainingProgress(Display):
    """Shows one run from `begin` on, and writes it to TensorBoard if asked."""

    def __init__(
        self, label: str, *, is_shown: bool = True, tensorboard: Path | None = None
    ) -> None:
        super().__init__(is_shown=is_shown, stays=True)
        self._label = label
        self._latest: Mapping[str, float] = {}
        self._step = 0
        self._writer: Any = None
        self._tensorboard = tensorboard if is_shown else None

    def begin(self, step: int, last_step: int) -> None:
        """Show the run from `step` on; what a killed try wrote to TensorBoard beyond is void."""
        self._step = step
        if self._tensorboard is not None and step < last_step:
            self._writer = _tensorboard_writer(self._tensorboard, purge_step=step + 1)
        self._bar = self.bar(self._label, last_step, step)

    def advance(self, step: int) -> None:
        self._step = step
        self.bars.update(self._bar, completed=step)

    def measured(self, metrics: Mapping[str, float]) -> None:
        self._latest = metrics
        self._write("train", metrics)
        self.bars.update(self._bar, numbers=f"loss {metrics['loss']:.3f}  {_speed(metrics)}")

    def scored(self, epoch: int, scores: Mapping[str, float], headline: str) -> None:
        self._write("val", scores)
        numbers = [f"epoch {epoch}"]
        if self._latest:
            numbers.append(f"loss {self._latest['loss']:.4f}")
            numbers.append(_speed(self._latest))
        numbers.append(f"val {headline} {scores[headline]:.2f}")
        self.tell("  ".join(numbers))

    def tell(self, line: str) -> None:
        self.say(f"{self._label}: {line}")

    def _write(self, group: str, metrics: Mapping[str, float]) -> None:
        if self._writer is not None and self._tensorboard is not None:
            with _one_line(self._tensorboard):
                for name, value in metrics.items():
                    self._writer.add_scalar(f"{group}/{name}", value, self._step)
                self._writer.flush()  # a kill must not take what a checkpoint will not write again

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._writer is not None:
            with suppress(OSError):  # a full disk, which was said when a line was written
                self._writer.close()


def _speed(metrics: Mapping[str, float]) -> str:
    """Images, or tokens, per second."""
    name = next(name for name in metrics if name.endswith("_per_second"))
    return f"{metrics[name]:,.0f} {name.removesuffix('_per_second')}/s"


def _tensorboard_writer(folder: Path, purge_step: int) -> Any:
    """A TensorBoard writer, or None when the package is not installed (extra `track`).

    It tells TensorBoard to hide the events of earlier files from `purge_step` on.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    threading.excepthook = partial(_tell_of_others, threading.excepthook)
    with _one_line(folder):
        return SummaryWriter(str(folder), purge_step=purge_step)


@contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write to {folder} ({error.strerror or error}); make room and run the same "
            "command to continue"
        ) from None


def _tell_of_others(before: Callable[[Any], object], failed: Any) -> None:
    """Hide the traceback of TensorBoard's thread: the next write raises its error."""
    is_writer = type(failed.thread).__name__ == "_AsyncWriterThread"
    if not (is_writer and isinstance(failed.exc_value, OSError)):
        before(failed)
