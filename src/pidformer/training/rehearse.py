"""A few real steps of a training at its real size: how fast, how much memory, how much disk."""

import resource
import sys
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pidformer.data.storage import fits_in_memory
from pidformer.data.views import sample
from pidformer.runs.recipe import Recipe
from pidformer.training.engine import Engine
from pidformer.training.loop import Trainer
from pidformer.training.optimizer import last_step
from pidformer.training.run import build_task, check_folder, prepared
from pidformer.training.tasks import Classification

WARM, STEPS = 3, 8
ENOUGH = 1.5
"""Seconds of steps that are measured, of `STEPS` of them at least."""
VALIDATED = 512
"""Images to validate on, at most."""
clock = time.perf_counter


class TrainingPace(NamedTuple):
    """What was measured, in seconds."""

    start: float
    """Until the first step is done: data opened, model built and compiled."""
    step: float
    load: float
    """A batch's loading alone; where this is the longer one, the device waits."""
    validation: float
    """One pass over the validation set."""
    save: float
    rows: int
    """Rows per batch, each of `unit[1]` images or tokens (`unit[0]`)."""
    unit: tuple[str, int]
    steps: int
    """Steps of the whole training."""
    validations: int
    memory: int
    """Bytes, of the GPU where there is one."""
    disk: int

    @property
    def seconds(self) -> float:
        """Seconds of the whole training, without the checkpoints on the way."""
        each = max(self.step, self.load)
        return self.start + self.steps * each + self.validations * self.validation + self.save

    @property
    def speed(self) -> float:
        """Images, or tokens, per second."""
        return self.rows * self.unit[1] / max(self.step, self.load)

    @property
    def loading_speed(self) -> float:
        return self.rows * self.unit[1] / max(self.load, 1e-9)


def rehearse_training(
    recipe: Recipe,
    out: Path,
    *,
    data: str | Path | None,
    device: str = "auto",
    steps_per_epoch: int | None = None,
    validated: int | None = None,
    is_streamed: bool = False,
) -> TrainingPace:
    """Train for a few steps into the run folder `out`, which can be evaluated afterwards.

    `steps_per_epoch` and `validated` (images or tokens) are those of the real set, where `data` is
    a small one in its place; `is_streamed`: the real one would not fit into memory.
    """
    begun = clock()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    task: Any = build_task(recipe, data)
    if is_streamed and hasattr(task, "loading"):
        loading = task.loading
        task.loading = lambda place: loading(place) | {"resident": False}
    engine = Engine(recipe.train, device)
    check_folder(out, recipe)
    trainer = Trainer(recipe, task, engine, out)
    place = engine.place.device
    try:
        with prepared(out, recipe, task, data):
            trainer.model.train()
            batches = _endless(trainer.data)
            _steps(trainer, batches, 1)
            start = clock() - begun
            _steps(trainer, batches, WARM - 1)
            taken, count = 0.0, 0
            while taken < ENOUGH:
                taken += _steps(trainer, batches, STEPS)
                count += STEPS
            step = taken / count
            batches.close()
            load = _load_seconds(trainer.data, place)
            once, validation = _validation_seconds(trainer, task, validated or _count(task))
            start += once
            save = timed(partial(trainer.save, final=True), place)
            memory = _peak(place)
    finally:
        rows, per_epoch = recipe.data.batch_size, trainer.data.steps_per_epoch
        del trainer
        engine.close()
    per_epoch = steps_per_epoch or per_epoch
    steps = last_step(recipe.schedule, per_epoch)
    between = recipe.train.evaluate_steps or recipe.train.evaluate_every * per_epoch
    disk = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return TrainingPace(
        start=start,
        step=step,
        load=load,
        validation=validation,
        save=save,
        rows=rows,
        unit=task.unit,
        steps=steps,
        validations=-(-steps // between),
        memory=memory,
        disk=2 * disk,  # the newest checkpoint is kept until the next is whole
    )


def _endless(data: Any, epoch: int = 0) -> Generator[Any, None, None]:
    while True:
        yield from data.epoch(epoch)
        epoch += 1


def _steps(trainer: Trainer, batches: Iterator[Any], count: int) -> float:
    """Seconds of so many updates."""

    def work() -> None:
        for _ in range(count):
            trainer._train_step(next(batches), 1e-6)
            trainer.step += 1

    return timed(work, trainer.engine.place.device)


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of some work, with what it left to the device."""
    begun = clock()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - begun


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def _load_seconds(data: Any, device: torch.device) -> float:
    """Seconds of a batch, after one from each worker: what they had ready would cost nothing."""
    workers = 0 if data.is_resident else getattr(data, "_num_workers", 0)
    batches, many = _endless(data, 1), max(STEPS, 2 * workers)
    for _ in range(max(1, workers)):
        next(batches)
    seconds = timed(lambda: [next(batches) for _ in range(many)], device) / many
    batches.close()
    return seconds


def _validation_seconds(trainer: Trainer, task: Any, total: int) -> tuple[float, float]:
    """Of `total` images, scenes or tokens: what decoding takes once if they are kept, and a pass.

    Of images a sample is measured, of scenes and texts all that are there.
    """
    device = trainer.engine.place.device
    work = partial(timed, trainer.evaluate, device)
    are_images = isinstance(task, Classification)
    if not are_images:
        return 0.0, work() * total / _count(task)
    source, size = task.val_source, task.recipe.data.image_size
    is_kept = fits_in_memory(total * source.channels * size**2, device)
    loading = task.loading
    task.loading = lambda place: loading(place) | {"resident": is_kept}
    task.val_source = sample(source, min(VALIDATED, len(source)))
    each = total / len(task.val_source)
    first = work()
    if not is_kept:
        return 0.0, first * each
    task._eval_images = None  # what is done once in a process is done
    decoding, again = work(), work()
    return max(0.0, decoding - again) * each, again * each


def _count(task: Any) -> int:
    """Images, scenes or tokens to validate on."""
    return len(task.val_source if hasattr(task, "val_source") else task.valid.tokens)
