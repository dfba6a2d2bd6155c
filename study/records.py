"""Published records as they are read: studies of runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pidformer.errors import InputError
from pidformer.report.collect import PublishedRun, published_folders, read_folder
from pidformer.reproduce.study import StudyPlan, load_study
from pidformer.results import Record
from pidformer.training.recipe import difference
from study.retrofit_plan import PLANS

HERE = Path(__file__).parent
CONFIRMING = 10
"""Seeds of registered studies from here on were not used to find anything."""
ABOUT = "about.md"
"""Beside the records: `# Title`, and what was asked, in words."""
FROZEN = ("look", "tune", "noise")
"""Beside them too, NAME.json: what was measured without training, and by which command."""


def registered_studies() -> list[str]:
    """Names of the studies whose rows were fixed before any was run."""
    return sorted([*PLANS, *(path.stem for path in HERE.glob("*.yaml"))])


def load_registered(name: str) -> StudyPlan:
    return PLANS[name] if name in PLANS else load_study(HERE / f"{name}.yaml")


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
    frozen: Mapping[str, Any] = field(default_factory=dict)
    """What `study.retrofit` measured of the network before any training, by its subcommand."""

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

    def only(self, runs: Sequence[PublishedRun]) -> Self:
        return replace(self, runs=tuple(runs))

    @property
    def is_registered(self) -> bool:
        """Whether its rows were fixed before any was run, and some of them are made."""
        made = any(run.seed >= CONFIRMING for run in self.runs)
        return made and self.name in registered_studies()

    @property
    def groups(self) -> dict[str | None, Self]:
        """The runs of each group of a registered study, in its order; None: of no group."""
        plan = load_registered(self.name) if self.is_registered else None
        groups = {row.name: row.group for row in plan.rows} if plan else {}
        names = [*plan.groups, None] if plan else [None]
        found = {
            name: [run for run in self.runs if groups.get(run.variant) == name] for name in names
        }
        return {name: self.only(runs) for name, runs in found.items() if runs}

    @property
    def reported(self) -> Self:
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


def read_studies(folders: Sequence[str | Path]) -> list[Study]:
    """The studies at and below `folders`, by name."""
    found = [place for folder in folders for place in published_folders(Path(folder))]
    studies = [_study(place) for place in {place.resolve(): place for place in found}.values()]
    if not studies:
        given = ", ".join(map(str, folders))
        raise InputError(
            f"no published records in {given}; publish runs with pidformer report RUN... "
            "--publish results/STUDY"
        )
    return sorted(studies, key=lambda study: study.name)


def _study(folder: Path) -> Study:
    runs = tuple(read_folder(folder))
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
        frozen={
            name: json.loads(file.read_text(encoding="utf-8"))
            for name in FROZEN
            if (file := folder / f"{name}.json").is_file()
        },
    )
