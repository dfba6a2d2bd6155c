"""Run folders as a report reads them: found, completed, and checked to belong together."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from pidformer import results
from pidformer.control import PIDGains
from pidformer.errors import InputError
from pidformer.files import check_inside
from pidformer.models.gains import as_gains
from pidformer.report.rerun import train_command
from pidformer.results import FILE_NAME, Record
from pidformer.runs.folder import read_recipe, trained_on
from pidformer.runs.twins import recipe_hash, twin_recipe
from pidformer.training.recipe import difference

MEASURED = ("robustness", "analysis", "segmentation", "language")
"""Records that a report shows, beside those of training."""
_NOT_ENTERED = {"checkpoints", "tensorboard", "figures", "claims", "jobs"}
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Run:
    """One folder: its records, with what its recipe says filled in."""

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
            return str(self.recipe.get("task", "classification"))
        kinds = {record.kind for record in self.records}
        return next((kind for kind in ("segmentation", "language") if kind in kinds), MAIN_TASK)

    @property
    def gains(self) -> tuple[PIDGains, ...]:
        """The different gains of its layers; none for softmax, or when there is no recipe."""
        given = (self.recipe or {}).get("model", {}).get("gains")
        if given is None:
            return ()
        layers = given if isinstance(given, list) else [given]
        return tuple(dict.fromkeys(as_gains(layer) for layer in layers))

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


MAIN_TASK = "classification"


def collect(folders: Sequence[str | Path]) -> list[Run]:
    """The runs at and below `folders`, softmax ones first, then by path as given."""
    if not folders:
        raise InputError("give at least one run folder, or a folder that contains some")
    places: dict[Path, Path] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise InputError(f"no folder at {folder}; give run folders, or what contains them")
        for place in _walk(folder):
            places.setdefault(place.resolve(), place)
    runs = [run for place in places.values() if (run := _read(place)) is not None]
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
            path = place / FILE_NAME
            check_inside(path, place)
            digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()[:16]


def _walk(folder: Path) -> Iterator[Path]:
    for place, inner, files in os.walk(folder):
        inner[:] = sorted(set(inner) - _NOT_ENTERED)
        if FILE_NAME in files or "recipe.yaml" in files:
            yield Path(place)


def _read(folder: Path) -> Run | None:
    recipe = read_recipe(folder) if (folder / "recipe.yaml").exists() else None
    records = results.read(folder)
    if recipe is None and not any(r.kind in MEASURED for r in records):
        return None
    run = Run(folder=folder, records=(), recipe=recipe)
    about: dict[str, Any] = {"label": run.label, "model": str(folder), "gains": None}
    if recipe is not None:
        written = ", ".join(map(str, run.gains))
        about |= {
            "gains": (f"({written})" if len(run.gains) > 1 else written) or None,
            "train_seed": recipe.get("seed"),
            "recipe": recipe_hash(recipe),
        }
    kept, left_out = _of_present_weights(records)
    trained = {}
    if recipe is not None:
        trained["command"] = train_command(recipe, str(folder), trained_on(folder))
    completed = tuple(
        replace(r, settings=_completed(r.settings, about | ({} if r.kind in MEASURED else trained)))
        for r in kept
    )
    return replace(run, records=completed, left_out=left_out)


def _completed(settings: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says, and where it is silent what its folder says."""
    found = dict(about) | dict(settings)
    if "recipe" in about:  # without what may differ between twins: workers, logging
        found["recipe"] = about["recipe"]
    return found


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
            _check_recipes(first, second)
        _check_data(same_task)


def _check_recipes(first: Run, second: Run) -> None:
    if first.recipe is None or second.recipe is None:
        lacking = first if first.recipe is None else second
        raise InputError(
            f"{lacking.folder} has no recipe to compare with {_other(first, second, lacking)}; "
            "report it apart, or put all into one report with --mixed"
        )
    lines = difference(twin_recipe(first.recipe), twin_recipe(second.recipe))
    if lines:
        more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        raise InputError(
            f"{first.folder} and {second.folder} differ in more than gains and seed "
            f"({'; '.join(lines[:_SHOWN])}{more}); report them apart, or give --mixed"
        )


def _other(first: Run, second: Run, lacking: Run) -> Path:
    return second.folder if lacking is first else first.folder


def _check_data(runs: Sequence[Run]) -> None:
    seen: dict[tuple[Any, ...], tuple[Run, Record]] = {}
    for run in runs:
        for record in run.records:
            m = record.measurement
            if m.kind not in MEASURED or not m.data_hash:
                continue
            key = (m.kind, m.seed, m.limit, m.spectrum_limit, m.what, m.split, m.views)
            first, other = seen.setdefault(key, (run, record))
            if other.measurement.data_hash != m.data_hash:
                raise InputError(
                    f"{first.folder} and {run.folder} were measured on different data "
                    f"({_data(other)} and {_data(record)}); report them apart, or give --mixed"
                )


def _data(record: Record) -> str:
    images = record.metrics.get("images")
    count = "" if images is None else f", {images:.0f} images"
    return f"{record.settings.get('data')}{count}, hash {record.settings['data_hash']}"
