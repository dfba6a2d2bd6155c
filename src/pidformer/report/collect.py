"""Runs as a report reads them, from folders or published files: found, completed, checked."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from pidformer import results
from pidformer.errors import InputError
from pidformer.files import check_inside
from pidformer.report.rerun import train_command
from pidformer.report.run import MEASURED, PublishedRun, Run, published_files, read_folder
from pidformer.results import FILE_NAME, Record
from pidformer.runs.folder import read_recipe, trained_on
from pidformer.runs.twins import recipe_hash, twin_recipe
from pidformer.training.recipe import difference

_NOT_ENTERED = {"checkpoints", "tensorboard", "figures", "claims", "jobs"}
_SHOWN = 5


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
            for path in _files(place):
                check_inside(path, place)
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _walk(folder: Path) -> list[Path]:
    """The run folders at and below a folder; where there are none, its folders of published runs.

    A study that is worked through leaves both, of the same runs.
    """
    runs, published = [], []
    for place, inner, _ in os.walk(folder):
        inner[:] = sorted(set(inner) - _NOT_ENTERED)
        if _is_run(Path(place)):
            runs.append(Path(place))
        elif published_files(Path(place)):
            published.append(Path(place))
    return runs or published


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (FILE_NAME, "recipe.yaml"))


def _files(folder: Path) -> list[Path]:
    """The records of a run folder, or of a folder of published runs."""
    if not _is_run(folder):
        return published_files(folder)
    return [path for path in [folder / FILE_NAME] if path.exists()]


def _read(folder: Path) -> list[Run]:
    if not _is_run(folder):
        return [run.with_log() for run in read_folder(folder)]
    recipe = read_recipe(folder) if (folder / "recipe.yaml").exists() else None
    records = results.read(folder)
    if recipe is None and not any(r.kind in MEASURED for r in records):
        return []
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
    return [replace(run, records=completed, left_out=left_out)]


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
            key: tuple[Any, ...] = (m.kind, m.seed, m.limit, m.spectrum_limit, m.what)
            key = (*key, m.split, m.views)
            if m.kind == "language":  # a model may be measured on several texts
                key = (*key, Path(str(record.settings.get("data"))).name)
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
