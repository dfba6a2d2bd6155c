"""The training loop: the same for every task, exact to resume.

Nothing random lives on between steps: data are a function of (seed, epoch, step), and dropout
draws from generators that are seeded anew at each step. So a checkpoint is weights, optimiser
state, averaged weights and the step number, and a resumed run ends with the weights of an
undisturbed one.
"""

import math
import signal
import time
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pidformer import results
from pidformer.errors import InputError, cut, is_out_of_memory
from pidformer.interrupts import Interrupted, Stopping
from pidformer.nn import has_control
from pidformer.runs.folder import (
    Checkpoint,
    keep_newest,
    load_checkpoint,
    save_checkpoint,
    save_weights,
)
from pidformer.runs.recipe import Recipe
from pidformer.training.engine import Engine, compile_options, compile_seconds
from pidformer.training.log import StepLog
from pidformer.training.nonfinite import NonFiniteWatch
from pidformer.training.optimizer import WeightAverage, build_optimizer, last_step, learning_rate
from pidformer.training.progress import TrainingProgress
from pidformer.training.tasks import Relocatable, Task


class Trainer:
    """One run: recipe, task and engine, from wherever its folder stands to the end."""

    def __init__(self, recipe: Recipe, task: Task, engine: Engine, run: Path) -> None:
        self.recipe, self.task, self.engine, self.run = recipe, task, engine, run
        place = engine.place
        if recipe.data.batch_size % (place.world_size * recipe.train.accumulate):
            raise InputError(
                f"data.batch_size {recipe.data.batch_size} does not divide over "
                f"{place.world_size} process(es) x {recipe.train.accumulate} part(s); "
                "choose a multiple"
            )
        self.data = task.train_data(place)
        self.last_step = last_step(recipe.schedule, self.data.steps_per_epoch)
        torch.manual_seed(recipe.seed)
        model: Any = task.build().to(place.device)
        if recipe.train.grad_checkpointing:
            model.set_grad_checkpointing(True)
        self.must_compile = engine.is_compiled
        if engine.is_compiled:
            model.compile(options=compile_options(recipe.train.compile))
        optimizer = build_optimizer(recipe.optim, model, recipe.peak_lr, place.device)
        self.model, self.optimizer = engine.prepare(model, optimizer)
        self.average = WeightAverage(self.model, recipe.train.ema) if recipe.train.ema else None
        gains = getattr(model, "gains", None)
        self.watch = NonFiniteWatch(recipe.train.on_nan, gains, place.device)
        self.ramp = recipe.schedule.ramp
        self.step = 0
        self.saved_at = time.monotonic()
        self._log = StepLog(place.device)
        self._stopping = Stopping()

    def fit(self, progress: TrainingProgress) -> dict[str, float]:
        """Train to the end and return the final scores."""
        self._resume(progress)
        if self.step >= self.last_step:
            return self.evaluate()
        if self.step == 0:
            self._look_at_control()
        self.model.train()
        with self._stopping:
            while self.step < self.last_step:
                self._train_epoch(progress)
                if self._is_due(at_end=True):
                    scores = self._score(progress)
                # After the evaluation, so that no checkpoint is ahead of its records.
                self._save_or_stop(at_end=True)
        self.save(final=True)
        return scores

    def _is_due(self, at_end: bool) -> bool:
        """Whether to evaluate now: at the end of the run, of some epochs, or every few steps."""
        train = self.recipe.train
        if self.step == self.last_step:
            return at_end
        if train.evaluate_steps is not None:
            return self.step % train.evaluate_steps == 0
        return at_end and self.step // self.data.steps_per_epoch % train.evaluate_every == 0

    def _score(self, progress: TrainingProgress) -> dict[str, float]:
        self.watch.check_now()  # no weights that are no numbers are recorded, or kept as the best
        scores = self.evaluate()
        if self.recipe.train.keep_best and self._is_best(scores):
            weights = self.engine.capture(self.model, self.optimizer)["model"]
            if self.engine.is_main:
                save_weights(self.run / "best.safetensors", weights)
        self._record("evaluate", scores)
        self._look_at_control()
        epoch = self.step // self.data.steps_per_epoch
        progress.scored(epoch, scores, self.task.headline)
        return scores

    def _is_best(self, scores: dict[str, float]) -> bool:
        """Whether it is better than every evaluation of this run before.

        While gains still grow, a score is that of weaker gains than the weights will have.
        """
        if not self._has_whole_gains(self.step):
            return False
        name, sign = self.task.headline, -1 if self.task.is_lower_better else 1
        before = [
            sign * r.metrics[name]
            for r in results.read(self.run)
            if r.kind == "evaluate" and r.step is not None and self._has_whole_gains(r.step)
        ]
        best = max((x for x in before if not math.isnan(x)), default=-math.inf)
        return self.engine.agree(self.engine.is_main and sign * scores[name] > best)

    def evaluate(self) -> dict[str, float]:
        """Scores on the validation set; of the averaged weights too, as ema_*."""
        self._set_gains()
        scores = self._scores()
        if self.average is not None:
            with self.average.applied():
                scores |= {f"ema_{name}": value for name, value in self._scores().items()}
        return scores

    def _scores(self) -> dict[str, float]:
        with self.engine.evaluating(self.model):
            counts = self.engine.sum(self.task.count(self.model, self.engine.place))
        return self.task.scores(counts)

    def _look_at_control(self) -> None:
        """Record the size of the control over that of the attention's output, where one acts.

        In float32, on a few images. All processes look, at the same ones: none waits for another.
        """
        if not has_control(self.model):
            return
        self._set_gains()
        place = self.engine.place
        exact = torch.autocast(place.device.type, enabled=False)
        with self.engine.evaluating(self.model), exact:
            found = self.task.control_scale(self.model, place)
        if found is None:
            return
        layers = [x if math.isfinite(x) else None for x in found.ratio.tolist()]
        epoch = self.step / self.data.steps_per_epoch
        self._record("control", {"ratio": found.mean_ratio, "epoch": epoch}, {"ratio": layers})

    def _set_gains(self) -> None:
        """Gains that grow during training, as they are at this step."""
        if self.ramp is not None:
            self.ramp.apply(self.model, self.step / self.last_step)

    def _has_whole_gains(self, step: int) -> bool:
        return self.ramp is None or self.ramp.shares(step / self.last_step, 1) == [1.0]

    def _train_epoch(self, progress: TrainingProgress) -> None:
        per_epoch, train = self.data.steps_per_epoch, self.recipe.train
        epoch, begin = divmod(self.step, per_epoch)
        if not self._log.steps:  # its clock starts with the epoch, after the evaluation
            self._log = StepLog(self.engine.place.device)
        for batch in self.data.epoch(epoch, begin):
            rate = learning_rate(self.recipe.schedule, self.recipe.peak_lr, self.step, per_epoch)
            self._set_gains()
            if self.must_compile:
                seconds = compile_seconds(self.model, self.engine.place.device)
                progress.tell(f"compiling (about {seconds} s)")
            # While it compiles there is nothing to save, so a signal ends the first step at once.
            with self._stopping.at_once() if self.must_compile else nullcontext():
                measured = self._train_step(batch, rate)
            self.must_compile = False
            self.step += 1
            if measured is not None:
                self._log.add(*measured)
            progress.advance(self.step)
            at_end = self.step % per_epoch == 0 or self.step == self.last_step
            if self.step % train.log_steps == 0 or at_end:
                self.watch.check_now()
                self._write_log(rate, progress)
                self._log = StepLog(self.engine.place.device)
            if self.step == self.last_step:
                return  # a run counted in steps may end inside an epoch
            if not at_end:
                if self._is_due(at_end=False):
                    begun = time.perf_counter()
                    self._score(progress)
                    self._log.begun += time.perf_counter() - begun  # not the training's time
                self._save_or_stop()

    def _train_step(self, batch: Any, rate: float) -> tuple[Tensor, Tensor] | None:
        """One update: loss and gradient norm; None for a step that was skipped."""
        recipe, engine = self.recipe, self.engine
        _seed_everything(recipe.seed, self.step, engine.place.rank)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        parts = equal_parts(batch, recipe.train.accumulate)
        total = torch.zeros((), device=engine.place.device)
        for index, (part, share) in enumerate(zip(parts, self._shares(parts), strict=True)):
            with engine.accumulating(self.model, is_last=index == len(parts) - 1):
                with engine.autocast():
                    loss = self.task.loss(self.model, part) * share
                engine.backward(loss)
            if index == 0 < len(parts) - 1:
                engine.keep_gradients(self.model)
            total += loss.detach()
        norm = engine.clip(self.model, recipe.optim.clip)
        suspect = engine.sum(total) if recipe.train.precision == "fp16" else norm
        is_accepted = self.watch.accepts(suspect, norm, self.step, rate)
        if is_accepted:
            self.optimizer.step()
            if self.average is not None:
                self.average.update()
        else:
            engine.skip()
        self.optimizer.zero_grad(set_to_none=True)
        return (total, norm) if is_accepted else None

    def _shares(self, parts: list[Any]) -> list[Any]:
        """What the loss of each part counts: their sum, averaged over processes, is the batch's."""
        sizes = [size for part in parts if (size := self.task.size(part)) is not None]
        if not sizes:
            return [1 / len(parts)] * len(parts)
        whole = self.engine.sum(torch.stack(sizes).sum())
        mean = whole.clamp(min=1) / self.engine.place.world_size
        return [size / mean for size in sizes]

    def _write_log(self, rate: float, progress: TrainingProgress) -> None:
        log = self._log
        sums = self.engine.sum(log.loss_sum.clone()) / self.engine.place.world_size
        seconds = time.perf_counter() - log.begun
        unit, size = self.task.unit
        metrics = {
            "loss": float(sums) / log.steps if log.steps else math.nan,
            "gradient_norm": float(log.largest_norm),
            "lr": rate,
            f"{unit}_per_second": log.steps * self.recipe.data.batch_size * size / seconds,
            "epoch": self.step / self.data.steps_per_epoch,
            "skipped_steps": self.watch.skipped,
        }
        self._record("train", metrics)
        progress.measured(metrics)

    def _record(
        self, kind: str, metrics: dict[str, float], details: Mapping[str, Any] | None = None
    ) -> None:
        if self.engine.is_main:
            record = results.Record(
                kind=kind,
                metrics=metrics,
                step=self.step,
                settings={"seed": self.recipe.seed},
                details=details or {},
            )
            results.append(self.run, record)

    def _save_or_stop(self, at_end: bool = False) -> None:
        if self.step == self.last_step:
            return  # about to be saved and to end anyway
        train, stopping = self.recipe.train, self._stopping.number is not None
        if train.checkpoint_steps is not None:
            due = at_once = self.step % train.checkpoint_steps == 0
        else:
            due, at_once = time.monotonic() - self.saved_at > train.checkpoint_seconds, False
        if self.engine.place.world_size > 1:
            # processes must agree, which costs a message: only now and then
            if not (at_end or at_once or self.step % train.log_steps == 0):
                return
            due, stopping = self.engine.agree(due), self.engine.agree(stopping)
        if due or stopping:
            self.watch.check_now()
            self.save()
        if stopping:
            raise Interrupted(self._stopping.number or signal.SIGTERM)

    def save(self, final: bool = False) -> None:
        """Write a checkpoint; at the end also the weights by themselves."""
        tensors = self.engine.capture(self.model, self.optimizer)
        if self.average is not None:
            with self.average.applied():
                tensors["ema"] = self.engine.capture(self.model, self.optimizer)["model"]
        log = self._log.state(self.engine)
        if self.engine.is_main:
            state = {
                "step": self.step,
                "scaler": self.engine.scaler_state(),
                "log": log,
                "skipped": self.watch.skipped,
                "resident": self.data.is_resident,
                "threads": self._threads(),
                "steps_per_epoch": self.data.steps_per_epoch,
            }
            save_checkpoint(self.run, self.step, tensors, state)
            if final:
                for name in _finished(tensors):
                    save_weights(self.run / f"{name}.safetensors", tensors[name])
        self.engine.wait()
        self.saved_at = time.monotonic()

    def _resume(self, progress: TrainingProgress) -> None:
        found = load_checkpoint(self.run)
        if found is None and (self.run / "model.safetensors").exists():
            raise InputError(
                f"{self.run} holds finished weights but no checkpoint to go on from; choose "
                "another --out, or delete that folder to start anew"
            )
        if found is not None:
            try:
                self._restore(found)
            except (RuntimeError, LookupError, TypeError, ValueError, OverflowError) as error:
                if is_out_of_memory(error):
                    raise
                raise InputError(
                    f"the checkpoint of step {found.step} in {self.run} does not fit its recipe "
                    f"({cut(error)}); it was written by another version or for other data: choose "
                    "another --out"
                ) from None
            self.step = found.step
            self._warn_of_changes(found.state)
            if self.step >= self.last_step and self.engine.is_main:
                # ended between its last checkpoint and what follows one
                keep_newest(self.run, self.step)
                for name in _finished(found.tensors):
                    if not (self.run / f"{name}.safetensors").exists():
                        save_weights(self.run / f"{name}.safetensors", found.tensors[name])
        if self.engine.is_main:
            is_new, last = found is None, self.step
            if is_new:  # of a run that ended before its first checkpoint, perhaps another recipe's
                (self.run / "best.safetensors").unlink(missing_ok=True)
            results.keep(self.run, lambda r: not is_new and (r.step is None or r.step <= last))
        if found is not None:
            epoch = self.step / self.data.steps_per_epoch
            progress.tell(f"going on from step {self.step} (epoch {epoch:.2f})")
        progress.begin(self.step, self.last_step)

    def _warn_of_changes(self, before: Mapping[str, Any]) -> None:
        """Warn of what makes a resumed run end differently from an undisturbed one."""
        if self.step >= self.last_step:
            return
        old, now = before.get("threads"), self._threads()
        if old and now and old != now:
            warnings.warn(
                f"{self.run} was begun with {old} CPU threads and goes on with {now}: its "
                f"weights will differ in their last bits; OMP_NUM_THREADS={old} avoids it",
                stacklevel=2,
            )
        steps, per_epoch = before.get("steps_per_epoch"), self.data.steps_per_epoch
        if steps and steps != per_epoch:
            warnings.warn(
                f"{self.run} was begun with {steps} steps per epoch and goes on with {per_epoch}: "
                "its training data have changed, and it ends elsewhere than a run on either",
                stacklevel=2,
            )

    def _threads(self) -> int | None:
        """Threads that share a sum on a CPU, in another order for another number of them."""
        return torch.get_num_threads() if self.engine.place.device.type == "cpu" else None

    def _restore(self, found: Checkpoint) -> None:
        if self.average is not None:
            # loaded through the model, so that sharded weights find their places
            averaged = found.tensors | {"model": found.tensors["ema"]}
            self.engine.restore(self.model, self.optimizer, averaged)
            self.average.reset()
        self.engine.restore(self.model, self.optimizer, found.tensors)
        self.engine.restore_scaler(found.state.get("scaler"))
        self._log.restore(found.state.get("log"), self.engine)
        self.watch.skipped = int(found.state.get("skipped", 0))
        if isinstance(self.data, Relocatable):
            self.data.load_as(resident=found.state.get("resident"))


def equal_parts(batch: Any, count: int) -> list[Any]:
    """A batch, a named tuple of tensors, in equal parts for gradient accumulation."""
    chunks = zip(*(tensor.chunk(count) for tensor in batch), strict=True)
    return [type(batch)(*chunk) for chunk in chunks]


def _finished(tensors: Mapping[str, Any]) -> list[str]:
    """The weights that a finished run has files of; the model's come last: they say it is."""
    return [name for name in ("ema", "model") if name in tensors]


def _seed_everything(seed: int, step: int, rank: int) -> None:
    """Dropout and stochastic depth of a step depend on (seed, step, rank) alone."""
    word = np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0]
    torch.manual_seed(int(word) % 2**63)
