"""Runs as a report reads them, from folders or published files: found, completed, checked."""

import hashlib
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from pidformer import results
from pidformer.control import PIDGains
from pidformer.control.feedback import as_feedback
from pidformer.errors import InputError, cut
from pidformer.fields import as_type, typed
from pidformer.files import check_inside, check_links
from pidformer.models.options import check_model
from pidformer.report.rerun import train_command
from pidformer.results import FILE_NAME, Record
from pidformer.robustness.compare import Group, Rows, group_runs, named_apart
from pidformer.runs.folder import read_recipe, trained_on
from pidformer.runs.recipe import recipe_from
from pidformer.runs.twins import recipe_hash, twin_recipe
from pidformer.training.recipe import difference

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
        """What trains it again, beside it in the folder of whoever types it."""
        again = f"{self.folder.resolve().name}-again"
        return train_command(self.recipe or {}, again, trained_on(self.folder))

    def of(self, kind: str, **settings: Any) -> list[Record]:
        """Its records of one kind whose settings have these values."""
        return [
            r
            for r in self.records
            if r.kind == kind and all(r.settings.get(k) == v for k, v in settings.items())
        ]

    def one(self, kind: str, **settings: Any) -> Record | None:
        return next(iter(self.of(kind, **settings)), None)

    def curve(self, name: str) -> list[tuple[float, float]]:
        """(epoch, value) of "loss", in training, or of a validation score; from the log."""
        logged = [r for r in self.of("train") if "epoch" in r.metrics]
        epochs = {r.step: r.metrics["epoch"] for r in logged}
        scored = logged if name == "loss" else self.of("evaluate")
        known = [r for r in scored if r.step in epochs and name in r.metrics]
        return [(epochs[r.step], r.metrics[name]) for r in known]


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

    def with_log(self) -> Self:
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
        log = [
            Record(
                kind="train" if name == "loss" else "evaluate",
                metrics={name: value, "epoch": epoch},
                settings=shared,
                step=round(1000 * epoch),
                time=self.header.time,
            )
            for name in ("loss", *SCORES)
            for epoch, value in self.header.details.get(name, [])
        ]
        kept = [replace(r, settings=shared | dict(r.settings)) for r in self.records]
        return replace(self, records=(*log, *kept))


def trained(runs: Sequence[Run], task: str | None = None) -> list[tuple[Group, list[Run]]]:
    """Models with their runs, task by task; a group's row "train" is the last record of the log."""
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
    """The published files in a folder, or the one that is given; hidden ones are unfinished."""
    given = [folder] if folder.is_file() and folder.suffix == ".jsonl" else folder.glob("*.jsonl")
    found = (path for path in given if not path.name.startswith("."))
    return sorted(path for path in found if path.name != FILE_NAME)


def read_folder(folder: Path) -> list[PublishedRun]:
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
    said = held if isinstance(held, dict) else {}
    check_model(said.get("model"), str(said.get("task", MAIN_TASK)), f"{path}: ")
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


_NOT_ENTERED = {"checkpoints", "tensorboard", "figures", "claims", "jobs"}
_SHOWN = 5


def collect(folders: Sequence[str | Path]) -> list[Run]:
    """The runs at and below `folders`, or in published files, softmax ones first, then by path."""
    if not folders:
        raise InputError("give at least one run folder, or a folder that contains some")
    places: dict[Path, Path] = {}
    for folder in map(Path, folders):
        if not folder.is_dir() and not published_files(folder):
            raise InputError(f"no folder at {folder}; give run folders, or what contains them")
        for place in _walk(folder):
            places.setdefault(place.resolve(), place)
    runs = [run for place in places.values() for run in _read(place)]
    if not runs:
        given = ", ".join(map(str, folders))
        raise InputError(f"no run in {given}; train one with pidformer train RECIPE --out FOLDER")
    return sorted(runs, key=lambda run: (bool(run.gains), len(run.gains)))


def inputs_hash(folders: Sequence[str | Path]) -> str:
    """16 hex digits of every record that `collect` would read: the state a report shows."""
    digest = hashlib.sha256()
    for folder in map(Path, folders):
        for place in _walk(folder):
            digest.update(f"{place.relative_to(folder)}\n".encode())
            for path in [place / FILE_NAME] if _is_run(place) else published_files(place):
                if path.exists():
                    check_inside(path, place)
                    digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _walk(folder: Path) -> list[Path]:
    """The run folders below a folder; if none, its published ones (a study leaves both)."""
    places = _folders(folder)
    return [place for place in places if _is_run(place)] or published_folders(folder)


def published_folders(folder: Path) -> list[Path]:
    return [place for place in _folders(folder) if published_files(place)]


def _folders(folder: Path) -> list[Path]:
    found = [folder] if folder.is_file() else []
    for place, inner, _ in os.walk(folder):
        inner[:] = sorted(set(inner) - _NOT_ENTERED)
        found.append(Path(place))
    return found


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (FILE_NAME, "recipe.yaml"))


def _read(folder: Path) -> list[Run]:
    if not _is_run(folder):
        return [run.with_log() for run in read_folder(folder)]
    recipe = read_recipe(folder) if (folder / "recipe.yaml").exists() else None
    records = results.read(folder)
    if recipe is None and not any(r.kind in MEASURED for r in records):
        return []
    run = Run(folder=folder, records=(), recipe=recipe)
    about: dict[str, Any] = {"label": run.label, "model": str(folder), "gains": None}
    trained, known = {}, {}
    if recipe is not None:
        written = ", ".join(map(str, run.gains))
        about["gains"] = (f"({written})" if len(run.gains) > 1 else written) or None
        about["train_seed"] = recipe.get("seed")
        trained["command"] = train_command(recipe, str(folder), trained_on(folder))
        known["recipe"] = recipe_hash(recipe)  # without what may differ: workers, logging
    kept, left_out = _of_present_weights(records)
    completed = []
    for record in kept:  # what it says, and where it is silent what its folder says
        silent = about if record.kind in MEASURED else about | trained
        completed.append(replace(record, settings={**silent, **record.settings, **known}))
    return [replace(run, records=tuple(completed), left_out=left_out)]


def _of_present_weights(records: Sequence[Record]) -> tuple[list[Record], int]:
    """Without measurements of weights that were measured again, after more training."""
    newest: dict[tuple[Any, ...], Any] = {}

    def use(record: Record) -> tuple[Any, ...]:
        return record.settings.get("gains"), record.settings.get("ema", False)

    for record in records:
        if record.settings.get("weights"):
            newest[use(record)] = record.settings["weights"]
    kept = [
        r
        for r in records
        if not r.settings.get("weights") or r.settings["weights"] == newest[use(r)]
    ]
    return kept, len(records) - len(kept)


def check_twins(runs: Sequence[Run]) -> None:
    """Refuse runs that one table cannot compare: other recipes, or other images."""
    for task in dict.fromkeys(run.task for run in runs):
        same_task = [run for run in runs if run.task == task]
        for first, second in pairwise(same_task):
            if not _are_published_twins(first, second):
                _check_recipes(first, second)
        _check_data(same_task)


def _are_published_twins(first: Run, second: Run) -> bool:
    runs = [run for run in (first, second) if isinstance(run, PublishedRun)]
    return len(runs) == 2 and len({run.header.settings["twin"] for run in runs}) == 1


def _check_recipes(first: Run, second: Run) -> None:
    if first.recipe is None or second.recipe is None:
        lacking, other = (first, second) if first.recipe is None else (second, first)
        raise InputError(
            f"{lacking.folder} has no recipe to compare with {other.folder}; report it apart, or "
            "put all into one report with --mixed"
        )
    lines = difference(twin_recipe(first.recipe), twin_recipe(second.recipe))
    if lines:
        more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        raise InputError(
            f"{first.folder} and {second.folder} differ in more than gains and seed "
            f"({'; '.join(lines[:_SHOWN])}{more}); report them apart, or give --mixed"
        )


def _check_data(runs: Sequence[Run]) -> None:
    seen: dict[tuple[Any, ...], tuple[Run, Record]] = {}
    for run in runs:
        for record in run.records:
            m = record.measurement
            if m.kind not in MEASURED or not m.data_hash:
                continue
            key = [m.kind, m.seed, m.limit, m.spectrum_limit, m.what, m.split, m.views]
            if m.kind == "language":  # a model may be measured on several texts
                key.append(Path(str(record.settings.get("data"))).name)
            first, other = seen.setdefault(tuple(key), (run, record))
            if other.measurement.data_hash != m.data_hash:
                raise InputError(
                    f"{first.folder} and {run.folder} were measured on different data "
                    f"({_data(other)} and {_data(record)}); report them apart, or give --mixed"
                )


def _data(record: Record) -> str:
    images = record.metrics.get("images")
    count = "" if images is None else f", {images:.0f} images"
    return f"{record.settings.get('data')}{count}, hash {record.settings['data_hash']}"
