"""One run as a report reads it: its records, with what its recipe says filled in.

A run is a folder, or one published file (`publish` writes them).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pidformer.control import PIDGains
from pidformer.control.feedback import as_feedback
from pidformer.errors import InputError, cut
from pidformer.fields import as_type, typed
from pidformer.files import check_links
from pidformer.models.options import check_model
from pidformer.report.rerun import train_command
from pidformer.results import FILE_NAME, Record
from pidformer.robustness.compare import Group, Rows, group_runs, named_apart
from pidformer.runs.folder import trained_on
from pidformer.runs.recipe import recipe_from

MEASURED = ("robustness", "analysis", "segmentation", "language")
"""Records that a report shows, beside those of training."""
MAIN_TASK = "classification"
SHARED = ("weights", "gains", "machine")
"""Settings that a measurement takes from the first line unless it says otherwise."""
SCORES = ("top1", "miou", "ppl")
"""Validation scores whose curves the first line may hold."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One folder, or one published file."""

    folder: Path
    records: tuple[Record, ...]
    recipe: Mapping[str, Any] | None
    left_out: int = 0
    """Records of weights that the folder no longer holds."""

    @property
    def label(self) -> str:
        return self.folder.resolve().name

    @property
    def task(self) -> str:
        if self.recipe is not None:
            return str(self.recipe.get("task", MAIN_TASK))
        kinds = {record.kind for record in self.records}
        return next((kind for kind in ("segmentation", "language") if kind in kinds), MAIN_TASK)

    @property
    def gains(self) -> tuple[PIDGains, ...]:
        """The different gains of its layers; none for softmax, or when there is no recipe."""
        given = (self.recipe or {}).get("model", {}).get("gains")
        if given is None:
            return ()
        layers = given if isinstance(given, list) else [given]
        return tuple(dict.fromkeys(as_feedback(layer) for layer in layers))

    @property
    def command(self) -> str:
        """What trains it again."""
        return train_command(self.recipe or {}, "NEW_FOLDER", trained_on(self.folder))

    def of(self, kind: str, **settings: Any) -> list[Record]:
        """Its records of one kind whose settings have these values."""
        return [
            r
            for r in self.records
            if r.kind == kind and all(r.settings.get(k) == v for k, v in settings.items())
        ]

    def one(self, kind: str, **settings: Any) -> Record | None:
        """The first of them."""
        return next(iter(self.of(kind, **settings)), None)


@dataclass(frozen=True, kw_only=True)
class PublishedRun(Run):
    """One file: a trained run, and what was measured of it."""

    header: Record
    recipe: Mapping[str, Any]

    @property
    def label(self) -> str:
        return str(self.header.settings["run"])

    @property
    def variant(self) -> str:
        return str(self.header.settings["variant"])

    @property
    def seed(self) -> int:
        return int(self.header.settings["seed"])

    @property
    def is_plain(self) -> bool:
        """Softmax attention, with nothing that acts between layers."""
        options = self.recipe.get("model", {}).get("options", {})
        return self.header.settings["gains"] is None and not options.get("value_residual")

    def with_log(self) -> PublishedRun:
        """The run with its training curves as records, as a run folder has them."""
        about = self.header.settings
        shared = {
            "label": self.label,
            "model": str(self.folder),
            "gains": about["gains"],
            "train_seed": self.seed,
            "recipe": about["twin"],
            "variant": self.variant,
            "machine": about.get("machine"),
            "command": about.get("command"),
        }
        log = []
        for name in ("loss", *SCORES):
            for epoch, value in self.header.details.get(name, []):
                kind = "train" if name == "loss" else "evaluate"
                metrics = {name: value, "epoch": epoch}
                step = round(1000 * epoch)
                log.append(Record(kind=kind, metrics=metrics, settings=shared, step=step))
        kept = [replace(r, settings=shared | dict(r.settings)) for r in self.records]
        return replace(self, records=(*log, *kept))


def trained(runs: Sequence[Run], task: str | None = None) -> list[tuple[Group, list[Run]]]:
    """Models by their training, with their runs: those of a task, or of all, task by task.

    A group's rows are "train", the last record of the log.
    """
    if task is None:
        return [
            one for name in dict.fromkeys(run.task for run in runs) for one in trained(runs, name)
        ]
    by_folder = {str(run.folder): run for run in runs}
    rows: list[Rows] = [
        {"train": run.of("train")[-1]} for run in runs if run.task == task and run.of("train")
    ]
    return [
        (group, [by_folder[str(row["train"].settings["model"])] for row in group.runs])
        for group in named_apart(group_runs(rows))
    ]


def folders_text(runs: Sequence[Run]) -> str:
    """The folders of classification runs as a command takes them; RUNS where there are none."""
    own = [run for run in runs if run.task == MAIN_TASK and not isinstance(run, PublishedRun)]
    return shlex.join(str(run.folder) for run in own) or "RUNS"


def published_files(folder: Path) -> list[Path]:
    """The published files in a folder, without hidden ones: those are being written, or were when
    a process died."""
    found = (path for path in folder.glob("*.jsonl") if not path.name.startswith("."))
    return sorted(path for path in found if path.name != FILE_NAME)


def read_folder(folder: Path) -> list[PublishedRun]:
    """The runs that are published in a folder."""
    check_links(folder)
    return [read_run(path) for path in published_files(folder)]


def read_run(path: Path) -> PublishedRun:
    """One file, its shared settings filled in again."""
    try:
        records = [Record.from_json(line) for line in path.read_bytes().splitlines() if line]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({cut(error)}); publish the run again") from None
    if not records or records[0].kind != "run":
        raise InputError(
            f"{path} does not begin with a record of its run; it is not made by pidformer report "
            "--publish"
        )
    header = records[0]
    held = _checked(header, path)
    shared = {key: header.settings.get(key) for key in SHARED}
    shared |= {"label": header.settings["run"], "train_seed": header.settings["seed"]}
    filled = [replace(r, settings=shared | dict(r.settings)) for r in records[1:]]
    return PublishedRun(folder=path, header=header, records=tuple(filled), recipe=held)


@dataclass(frozen=True, kw_only=True)
class _Header:
    """What the first line must say."""

    run: str
    variant: str
    seed: int
    recipe: dict[str, Any]
    gains: str | None = None
    twin: str | None = None


def _checked(header: Record, path: Path) -> Mapping[str, Any]:
    """The recipe of the first line, if all of the line is as `publish` writes it."""
    held = header.settings.get("recipe")
    model = held.get("model") if isinstance(held, dict) else None
    check_model(model, str(held.get("task", MAIN_TASK)) if held else MAIN_TASK, f"{path}: ")
    names = [field.name for field in fields(_Header)]
    given = {name: header.settings[name] for name in names if name in header.settings}
    try:
        about = typed(_Header, given, key_of="setting")
        recipe_from(about.recipe)
        for name in ("loss", *SCORES):
            as_type(tuple[tuple[float, float], ...], header.details.get(name, []), name)
    except InputError as error:
        raise InputError(f"{path} is damaged ({cut(error, 160)}); publish the run again") from None
    return about.recipe
