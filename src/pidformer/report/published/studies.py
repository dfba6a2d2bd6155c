"""Published records as they are read: studies of runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pidformer.errors import InputError
from pidformer.files import check_links
from pidformer.models.options import check_model
from pidformer.report.published.publishing import SHARED
from pidformer.results import FILE_NAME, Record
from pidformer.studies import shipped_studies
from pidformer.training.recipe import difference

CONFIRMING = 10
"""Seeds of registered studies from here on were not used to find anything."""
ABOUT = "about.md"
"""Beside the records: `# Title`, and what was asked, in words."""


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """One file: a trained run, and what was measured of it."""

    study: str
    header: Record
    records: tuple[Record, ...]

    @property
    def name(self) -> str:
        return str(self.header.settings["run"])

    @property
    def variant(self) -> str:
        return str(self.header.settings["variant"])

    @property
    def seed(self) -> int:
        return int(self.header.settings["seed"])

    @property
    def task(self) -> str:
        return str(self.header.settings["task"])

    @property
    def recipe(self) -> Mapping[str, Any]:
        return self.header.settings["recipe"]

    @property
    def is_plain(self) -> bool:
        """Softmax attention, with nothing that acts between layers."""
        options = self.recipe.get("model", {}).get("options", {})
        return self.header.settings["gains"] is None and not options.get("value_residual")

    def one(self, kind: str, **settings: Any) -> Record | None:
        """The record of one kind whose settings have these values."""
        return next(iter(self.all(kind, **settings)), None)

    def all(self, kind: str, **settings: Any) -> Iterator[Record]:
        for r in self.records:
            if r.kind == kind and all(r.settings.get(k) == v for k, v in settings.items()):
                yield r


def training_length(run: PublishedRun) -> tuple[int, str]:
    """In steps or epochs."""
    schedule = run.recipe.get("schedule", {})
    steps = schedule.get("steps")
    return (steps, "steps") if steps else (int(schedule.get("epochs") or 0), "epochs")


@dataclass(frozen=True)
class Variant:
    """Runs that differ in their seed alone, by seed."""

    name: str
    runs: tuple[PublishedRun, ...]

    @property
    def header(self) -> Record:
        return self.runs[0].header

    @property
    def is_plain(self) -> bool:
        return self.runs[0].is_plain

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)


@dataclass(frozen=True, kw_only=True)
class Study:
    """One folder."""

    name: str
    title: str
    about: str
    runs: tuple[PublishedRun, ...]

    @property
    def task(self) -> str:
        return self.runs[0].task

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """Softmax first, then by name."""
        named: dict[str, list[PublishedRun]] = {}
        for run in self.runs:
            named.setdefault(run.variant, []).append(run)
        found = [
            Variant(name, tuple(sorted(runs, key=lambda run: run.seed)))
            for name, runs in named.items()
        ]
        return tuple(sorted(found, key=lambda v: (not v.is_plain, v.name)))

    def twin(self, variant: Variant) -> tuple[Variant | None, list[str]]:
        """The softmax variant of the same recipe; failing that the nearest, and what differs.

        Of several of that recipe, the one with most seeds in common.
        """
        if variant.is_plain:
            return None, []
        plain = [v for v in self.variants if v.is_plain]
        if not plain:
            return None, []
        key = variant.header.settings["twin"]
        same = [other for other in plain if other.header.settings["twin"] == key]
        if same:
            return max(same, key=lambda other: len({*other.seeds} & {*variant.seeds})), []
        gaps = [(_gap(other, variant), other) for other in plain]
        lines, nearest = min(gaps, key=lambda pair: len(pair[0]))
        return nearest, lines

    def only(self, runs: Sequence[PublishedRun]) -> Study:
        return replace(self, runs=tuple(runs))

    @property
    def is_registered(self) -> bool:
        """Whether its rows were fixed before any was run, and some of them are made."""
        made = any(run.seed >= CONFIRMING for run in self.runs)
        return made and self.name in shipped_studies()

    @property
    def reported(self) -> Study:
        """Of a registered study the runs that report; of any other all."""
        if not self.is_registered:
            return self
        return self.only([run for run in self.runs if run.seed >= CONFIRMING])


_ACTS = (
    "model.gains",
    "model.learn_gains",
    "model.init",
    "model.options.value_residual",
    "model.options.integral_",
    "schedule.gain_ramp",
    "segmentation.decoder.gains",
    "segmentation.backbone",
    "seed:",
)


def _gap(plain: Variant, other: Variant) -> list[str]:
    lines = difference(plain.runs[0].recipe, other.runs[0].recipe)
    return [line for line in lines if not line.startswith(_ACTS)]


def find_studies(folders: Sequence[str | Path]) -> list[Path]:
    """The folders at and below `folders` that hold published files."""
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        if folder.is_dir():
            for path in _files(folder.rglob("*.jsonl")):
                if path.name != FILE_NAME:
                    found.setdefault(path.parent.resolve(), path.parent)
    return list(found.values())


def _files(paths: Iterable[Path]) -> list[Path]:
    """In order, without hidden ones: those are being written, or were when a process died."""
    return sorted(path for path in paths if not path.name.startswith("."))


def read_studies(folders: Sequence[str | Path]) -> list[Study]:
    """The studies at and below `folders`, by name."""
    studies = [_study(folder) for folder in find_studies(folders)]
    if not studies:
        given = ", ".join(map(str, folders))
        raise InputError(
            f"no published records in {given}; publish runs with pidformer report RUN... "
            "--publish results/STUDY"
        )
    return sorted(studies, key=lambda study: study.name)


def _study(folder: Path) -> Study:
    check_links(folder)
    runs = tuple(read_run(path) for path in _files(folder.glob("*.jsonl")))
    tasks = sorted({run.task for run in runs})
    if len(tasks) > 1:
        raise InputError(f"{folder} mixes tasks ({', '.join(tasks)}); a study has one")
    path = folder / ABOUT
    text = path.read_text(encoding="utf-8").strip() if path.exists() else f"# {folder.name}"
    title, _, about = text.partition("\n")
    return Study(
        name=folder.name,
        title=title.removeprefix("#").strip() or folder.name,
        about=about.strip(),
        runs=runs,
    )


def read_run(path: Path) -> PublishedRun:
    """One file, its shared settings filled in again."""
    try:
        records = [Record.from_json(line) for line in path.read_text().splitlines() if line]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}); publish the run again") from None
    if not records or records[0].kind != "run":
        raise InputError(
            f"{path} does not begin with a record of its run; it is not made by pidformer report "
            "--publish"
        )
    header = records[0]
    recipe = header.settings.get("recipe")
    held = recipe if isinstance(recipe, dict) else {}
    check_model(held.get("model"), held.get("task", "classification"), f"{path}: ")
    shared = {key: header.settings.get(key) for key in SHARED}
    shared |= {"label": header.settings["run"], "train_seed": header.settings["seed"]}
    filled = [replace(r, settings=shared | dict(r.settings)) for r in records[1:]]
    return PublishedRun(study=path.parent.name, header=header, records=tuple(filled))
