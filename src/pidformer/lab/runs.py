"""Which models a visitor can choose: the runs that were named, and the digits demo."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pidformer import results
from pidformer.errors import InputError
from pidformer.lab.pictures import DIGITS, PictureSets
from pidformer.report.collect import Run, collect
from pidformer.runs.open import Subject, open_subject
from pidformer.training import load_recipe
from pidformer.training.run import train

if TYPE_CHECKING:
    from pidformer.lab.attack import AttackKnobs
    from pidformer.lab.text import TextKnobs

DEMO = {"digits demo, softmax": "softmax", "digits demo, PID": "pid"}
"""Shown name and recipe of the bundled twins."""
NOBODY = "(none)"
"""In place of a second model."""
_LOCK = threading.Lock()
Told = Callable[[float, str], None]
"""Told a share of the work that is done, and what it is."""


def default_home() -> Path:
    """Where the demo's runs are kept: the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "pidformer" / "lab"


@dataclass(frozen=True)
class Shelf:
    """The models of one lab."""

    given: tuple[str, ...] = ()
    home: Path = Path()
    data: Path | None = None

    @classmethod
    def of(
        cls,
        given: Sequence[str | Path],
        home: str | Path | None,
        data: str | Path | None = None,
    ) -> Shelf:
        """Checks at once that all that was named is there."""
        place = Path(home) if home is not None else default_home()
        shelf = cls(tuple(map(str, given)), place, None if data is None else Path(data))
        assert shelf.pictures is not None
        return shelf

    @cached_property
    def runs(self) -> list[Run]:
        """Runs at and below the folders that were named."""
        folders = [text for text in self.given if Path(text).exists() or ":" not in text]
        return collect(folders) if folders else []

    @cached_property
    def pictures(self) -> PictureSets:
        """Images to attack."""
        return PictureSets.of(self.runs, self.data)

    def own_pictures(self, name: str) -> str:
        """The set that a model was trained on, if it is here; the digits otherwise."""
        run = labels(self.runs).get(name)
        own = "" if run is None or run.recipe is None else str(run.recipe["data"]["name"])
        return own if own in self.pictures.folders else DIGITS

    def first_pictures(self, name: str) -> str:
        """The set to open on with this model: the one at --data, or else the model's own."""
        return self.own_pictures(name) if self.data is None else self.data.resolve().name

    def folders(self, task: str) -> dict[str, str]:
        """Folders of the runs of one task, by names that a shared address may carry."""
        named = labels(self.runs)
        return {
            name: str(run.folder)
            for name, run in named.items()
            if run.task == task and run.recipe is not None
        }

    @property
    def classifiers(self) -> dict[str, str]:
        """What the Attack view offers: names, and what `open_subject` takes for them."""
        others = {text: text for text in self.given if ":" in text and not Path(text).exists()}
        demo = {name: str(self.home / f"digits-{model}") for name, model in DEMO.items()}
        return self.folders("classification") | others | demo

    def twin(self, name: str, among: Sequence[str]) -> str | None:
        """The first of the others with the same data and other gains, or the nearest to that."""
        runs = labels(self.runs)

        def facts(name: str) -> tuple[Any, Any]:
            run = runs.get(name)
            data = None if run is None or run.recipe is None else run.recipe["data"]["name"]
            return data, () if run is None else run.gains

        data, gains = facts(name)
        others = {other: facts(other) for other in among if other != name}
        likely = {other: (d == data, g != gains) for other, (d, g) in others.items()}
        return max(likely, key=lambda other: likely[other], default=None)

    def subject(self, name: str, told: Told = lambda share, what: None) -> Subject:
        """The model of this name; the demo's is trained when it is asked for first."""
        if name not in self.classifiers:
            raise InputError(f"{name!r} is not among the models of this lab")
        with _LOCK:  # one training or loading at a time, whoever asks
            if name in self._opened:
                return self._opened[name]
            where = self.classifiers[name]
            if name in DEMO:
                train_demo(DEMO[name], Path(where), told=told)
            subject = open_subject(where)
            for weight in subject.model.parameters():
                weight.requires_grad_(False)
            self._opened[name] = subject
            return subject

    @cached_property
    def _opened(self) -> dict[str, Subject]:
        return {}


def named_models(knobs: AttackKnobs | TextKnobs) -> list[str]:
    """The models that two boxes name: both, or the first where the second is nobody else."""
    is_alone = knobs.second in (NOBODY, knobs.first)
    return [knobs.first] if is_alone else [knobs.first, knobs.second]


def labels(runs: Sequence[Run]) -> dict[str, Run]:
    """Runs by a name of their own: the folder's, or its path where two have the same."""
    names = [run.label for run in runs]
    return {run.label if names.count(run.label) == 1 else str(run.folder): run for run in runs}


def train_demo(
    model: str,
    run: Path,
    *,
    told: Told = lambda share, what: None,
    overrides: Sequence[str] = (),
) -> None:
    """Train a digits recipe into `run`, unless it is there; tens of seconds on one core."""
    if (run / "model.safetensors").exists():
        return
    recipe = load_recipe(f"digits/{model}.yaml", overrides)
    epochs = recipe.schedule.epochs
    run.parent.mkdir(parents=True, exist_ok=True)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            train(recipe, run, device="cpu", is_shown=False)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.3)
        done = [r.metrics.get("epoch", 0.0) for r in _records(run)]
        epoch = max(done, default=0.0)
        told(epoch / epochs, f"training {model} on digits: epoch {epoch:.0f} of {epochs}")
    if failed:
        raise failed[0]


def _records(run: Path) -> list[Any]:
    return results.read(run) if run.exists() else []
