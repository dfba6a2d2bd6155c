"""Which models a visitor can choose: the runs that were named, and the examples."""

from __future__ import annotations

import filecmp
import os
import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from pidformer.errors import InputError
from pidformer.files import atomic_folder
from pidformer.lab.knobs import NOBODY
from pidformer.lab.pictures import DIGITS, PictureSets
from pidformer.report.collect import Run, collect
from pidformer.runs.open import Subject, open_subject

EXAMPLES = Path(__file__).parent / "examples"
"""Trained twins of digits and of text: README.md there says how they were made."""
DEMO = {"digits example, softmax": "digits-softmax", "digits example, PID": "digits-pid"}
"""Shown name and folder of the classifiers among them, which come with records."""
TEXTS = {"novels example, softmax": "novels-softmax", "novels example, PID": "novels-pid"}
"""The same of the language models."""
_LOCK = threading.Lock()


def example_runs(home: Path) -> dict[str, Path]:
    """The examples by shown name, copied to `home` for new records where that can be written."""
    found = {}
    for name, folder in DEMO.items():
        source, place = EXAMPLES / folder, home / folder
        with suppress(OSError, InputError):
            ours, copied = (each / "model.safetensors" for each in (source, place))
            if not (copied.exists() and filecmp.cmp(ours, copied, shallow=False)):
                shutil.rmtree(place, ignore_errors=True)
                home.mkdir(parents=True, exist_ok=True)
                with atomic_folder(place) as fresh:
                    shutil.copytree(source, fresh, dirs_exist_ok=True)
        found[name] = place if place.is_dir() else source
    return found


class Catalogue:
    """The models of one lab: the given `runs`, and others by name; and the `pictures` to attack."""

    def __init__(
        self,
        given: Sequence[str | Path],
        home: str | Path | None = None,
        data: str | Path | None = None,
    ) -> None:
        if home is None:
            cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            home = Path(cache, "pidformer", "lab")
        self.home = Path(home)
        self.data = None if data is None else Path(data)
        texts = list(map(str, given))
        self.others = [text for text in texts if ":" in text and not Path(text).exists()]
        folders = [text for text in texts if text not in self.others]
        self.runs: list[Run] = collect(folders) if folders else []
        self.pictures = PictureSets.of(self.runs, self.data)
        self._opened: dict[str, Subject] = {}

    @cached_property
    def named(self) -> dict[str, Run]:
        """The runs that were named, by names that a shared address may carry."""
        return labels(self.runs)

    @cached_property
    def examples(self) -> dict[str, Path]:
        return example_runs(self.home)

    @cached_property
    def measured(self) -> list[Run]:
        """What the Results view shows: the runs that were named, or else the examples."""
        return self.runs or collect(list(self.examples.values()))

    def own_pictures(self, name: str) -> str:
        """The set that a model was trained on, if it is here; the digits otherwise."""
        run = self.named.get(name)
        own = "" if run is None or run.recipe is None else str(run.recipe["data"]["name"])
        return own if own in self.pictures.folders else DIGITS

    def first_pictures(self, name: str) -> str:
        """The set to open on with this model: the one at --data, or else the model's own."""
        return self.own_pictures(name) if self.data is None else next(iter(self.pictures.folders))

    def folders(self, task: str) -> dict[str, str]:
        """Folders of the runs of one task; published runs are files, without weights."""
        return {
            name: str(run.folder)
            for name, run in self.named.items()
            if run.task == task and run.recipe is not None and run.folder.is_dir()
        }

    @property
    def classifiers(self) -> dict[str, str]:
        """What the Attack view offers: names, and what `open_subject` takes for them."""
        others = {text: text for text in self.others}
        examples = {name: str(folder) for name, folder in self.examples.items()}
        return self.folders("classification") | others | examples

    @property
    def writers(self) -> dict[str, str]:
        """What the Text view offers: names and folders of language models."""
        examples = {name: str(EXAMPLES / folder) for name, folder in TEXTS.items()}
        return self.folders("language") | examples

    def pair(self, offered: Sequence[str]) -> tuple[str, str]:
        """Two models to begin with: the first that was named, or else an example, and its twin."""
        own = [name for name in offered if name not in {**DEMO, **TEXTS}] or offered
        return own[0], self.twin(own[0], own) or NOBODY

    def twin(self, name: str, among: Sequence[str]) -> str | None:
        """The first of the others with the same data and other gains, or the nearest to that."""

        def facts(name: str) -> tuple[Any, Any]:
            run = self.named.get(name)
            data = None if run is None or run.recipe is None else run.recipe["data"]["name"]
            return data, () if run is None else run.gains

        data, gains = facts(name)
        others = {other: facts(other) for other in among if other != name}
        likely = {other: (d == data, g != gains) for other, (d, g) in others.items()}
        return max(likely, key=lambda other: likely[other], default=None)

    def subject(self, name: str) -> Subject:
        """The model of this name, kept once it is opened."""
        if name not in self.classifiers:
            raise InputError(f"{name!r} is not among the models of this lab, or no longer")
        with _LOCK:  # one loading at a time, whoever asks
            if name in self._opened:
                return self._opened[name]
            subject = open_subject(self.classifiers[name])
            for weight in subject.model.parameters():
                weight.requires_grad_(False)
            self._opened[name] = subject
            return subject


def labels(runs: Sequence[Run]) -> dict[str, Run]:
    """Runs by a name of their own: the folder's, or its path where two have the same."""
    names = [run.label for run in runs]
    return {run.label if names.count(run.label) == 1 else str(run.folder): run for run in runs}
