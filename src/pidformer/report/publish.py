"""Run folders into a repository: `STUDY/VARIANT-seedN.jsonl`, small, without paths or weights.

The first line of a file is a record of kind "run": recipe, seed, gains, weights' hash, machine and
the command that trains it again. The others are measurements; what they share with the first line
is not written again.
"""

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pidformer.control.feedback import as_feedback
from pidformer.data.segmentation.confusion import pack_areas, unpack_areas
from pidformer.errors import InputError
from pidformer.fields import mapped
from pidformer.files import write_whole
from pidformer.report.collect import MAIN_TASK, MEASURED, SCORES, SHARED, PublishedRun, Run, collect
from pidformer.report.details import training_seconds
from pidformer.report.metrics import MILLI, merged_corruptions
from pidformer.report.rerun import measure_command, train_command
from pidformer.results import Record
from pidformer.runs.folder import load_weights
from pidformer.runs.twins import control_free_hash

FILE_BYTES, ALL_BYTES = 1_000_000, 16_000_000
"""The most that a file, and a folder of studies, may take."""
CONTROL = "control"
"""Records of the control's size as a run trains, and their curve: (epoch, ratio)."""
_DROPPED = frozenset(
    {"model", "label", "train_seed", "recipe", "ema", "batch_size", "device", "suite", "eps"}
    | {"decoder_gains", "backbone", "scale"}
)
_INSIDE = ("similarity", "effective_rank", "verdict", "ratio", "initial_ratio", "output")
"""What is kept of an analysis, layer by layer."""
_POINTS = 12
_PATH = re.compile(r"(^|[\s'\"=:(,])(~|[A-Za-z]:\\|/\w)")
_NAME = re.compile(r"(?P<variant>.+)-seed(?P<seed>\d+)")


def publish(folders: Sequence[str | Path], to: str | Path) -> list[Path]:
    """Write one file for each run at or below `folders` into the study `to`; their paths.

    Runs are called VARIANT-seedN by their folders (a leading "STUDY-" is left out). Publishing a
    run again replaces its file. A run that was not measured, an absolute path that would be
    left, and files too large for a repository are refused, before anything is written.
    """
    to = Path(to)
    if to.exists() and not to.is_dir():
        raise InputError(f"{to} is a file; --publish names the folder of a study")
    made: dict[Path, str] = {}
    for run in collect(folders):
        if isinstance(run, PublishedRun):
            raise InputError(f"{run.folder} is published already; give run folders")
        name = run_name(run, to.name)
        path = to / f"{name}.jsonl"
        if path in made:
            raise InputError(f"two of the runs are called {name}; publish them apart")
        made[path] = "".join(r.to_json() + "\n" for r in _records(run, to.name, name))
    _check_sizes(to, made)
    to.mkdir(parents=True, exist_ok=True)
    for path, text in made.items():
        write_whole(path, text)
    return list(made)


def run_name(run: Run, study: str) -> str:
    """VARIANT-seedN of a run folder."""
    label = run.label.removeprefix(f"{study}-")
    seed = (run.recipe or {}).get("seed")
    found = _NAME.fullmatch(label)
    if found is None:
        return f"{label}-seed{0 if seed is None else seed}"
    if seed is not None and int(found["seed"]) != seed:
        raise InputError(f"{run.folder} is a run of seed {seed}; rename it to end in -seed{seed}")
    return label


def _records(run: Run, study: str, name: str) -> list[Record]:
    if run.recipe is None:
        raise InputError(f"{run.folder} has no recipe.yaml; only runs of training are published")
    measured = [r for r in run.records if r.kind in MEASURED and not r.settings.get("ema")]
    own_gains = _own(run, measured)
    if not own_gains:
        command = shlex.join(["pidformer", "evaluate", str(run.folder)])
        what = " with its own gains" if measured else ""
        raise InputError(f"{run.folder} was not measured{what}; use {command}")
    measured = own_gains
    own = shrink(newest(measured))
    header = _header(run, study, name, measured)
    shared = [(key, header.settings.get(key)) for key in SHARED]
    lines = [header]
    for record in own:
        settings = {
            key: value
            for key, value in record.settings.items()
            if key not in _DROPPED and value is not None and (key, value) not in shared
        }
        settings["data"] = data_name(record, run)
        settings["command"] = measure_command(record)
        lines.append(replace(record, settings=settings))
    for record in lines:
        _check_paths(run, record)
    return lines


def _own(run: Run, measured: Sequence[Record]) -> list[Record]:
    """Those with the gains of the recipe; trials of others stay behind, however many they are."""
    given = (run.recipe or {}).get("model", {}).get("gains")
    layers = given if isinstance(given, list) else [given]
    laws = [None if layer is None else as_feedback(layer) for layer in layers]
    each = [*dict.fromkeys(laws)]  # what `collect` says of a record that is silent about gains
    known = {str(tuple(laws)), f"({', '.join(map(str, each))})"}
    known |= {str(each[0])} if len(each) == 1 else set()
    return [r for r in measured if str(r.settings.get("gains")) in known]


def _header(run: Run, study: str, name: str, measured: Sequence[Record]) -> Record:
    """What the measurements of a run share; the machine is the one that made most of them."""
    recipe = without_folders(run.recipe or {})
    found, command = measured[-1].settings.get("recipe"), train_command(recipe)
    metrics = {"train_seconds": training_seconds(run), "parameters": _parameters(run.folder)}
    known = {key: value for key, value in metrics.items() if value is not None}
    details = _curves(run)
    return first_line(study, name, recipe, found, command, measured, metrics=known, details=details)


def first_line(
    study: str,
    name: str,
    recipe: Mapping[str, Any],
    recipe_hash: str | None,
    command: str,
    measured: Sequence[Record],
    *,
    metrics: Mapping[str, float],
    details: Mapping[str, Any],
) -> Record:
    """The record of a run VARIANT-seedN; `command` trains it again."""
    last = measured[-1]
    machines = Counter(json.dumps(r.settings.get("machine")) for r in measured)
    variant, _, seed = name.rpartition("-seed")
    settings = {
        "study": study,
        "run": name,
        "variant": variant,
        "seed": int(seed),
        "task": recipe.get("task", MAIN_TASK),
        "gains": last.settings.get("gains"),
        "weights": last.settings.get("weights"),
        "recipe": recipe,
        "recipe_hash": recipe_hash,
        "twin": control_free_hash(recipe),
        "data": recipe.get("data", {}).get("name"),
        "machine": json.loads(machines.most_common(1)[0][0]),
        "command": command,
    }
    return Record(kind="run", metrics=metrics, settings=settings, details=details, time=last.time)


def _parameters(folder: Path) -> float | None:
    path = folder / "model.safetensors"
    if not path.exists():
        return None
    return float(sum(tensor.numel() for tensor in load_weights(path).values()))


def _curves(run: Run) -> dict[str, list[list[float]]]:
    """A few points of the training loss, validation scores and the control's size, by epoch."""
    found = {"loss": _thin(run.curve("loss"))}
    found |= {name: _thin(points) for name in SCORES if (points := run.curve(name))}
    sizes = [(r.metrics["epoch"], r.metrics["ratio"]) for r in run.of(CONTROL)]
    finite = [(epoch, ratio) for epoch, ratio in sizes if math.isfinite(ratio)]
    if finite:
        found[CONTROL] = _thin(finite[:1]) + _thin(finite[1:])  # from before the first step
    return found


def _thin(points: Sequence[tuple[float, float]]) -> list[list[float]]:
    step = max(1, -(-len(points) // _POINTS))
    kept = list(reversed(points[::-1][::step]))  # the last one always
    return [[round(x, 3), round(y, 5)] for x, y in kept]


def data_name(record: Record, run: Run) -> str:
    trained = str((run.recipe or {}).get("data", {}).get("name"))
    name = Path(str(record.settings.get("data", ""))).name
    return name if name not in ("", "data", "None") else trained


def without_folders(value: Any) -> Any:
    """A recipe without folders: of a path, its last part."""

    def name(leaf: Any) -> Any:
        is_path = isinstance(leaf, str) and (_PATH.search(leaf) or leaf.startswith((".", "runs/")))
        return Path(leaf).name if is_path else leaf

    return mapped(name, value)


def _check_paths(run: Run, record: Record) -> None:
    for key, value in record.settings.items():
        if isinstance(value, str) and _PATH.search(value):
            raise InputError(
                f"a {record.kind} record of {run.folder} holds a path in {key} ({value}); the "
                "repository keeps none"
            )


def _check_sizes(to: Path, made: Mapping[Path, str]) -> None:
    for path, text in made.items():
        if len(text) > FILE_BYTES:
            raise InputError(f"{path} would have {len(text):,} bytes, {FILE_BYTES:,} at most")
    others = [path for path in to.parent.glob("*/[!.]*.jsonl") if path not in made]
    total = sum(map(len, made.values())) + sum(path.stat().st_size for path in others)
    if total > ALL_BYTES:
        raise InputError(
            f"{to.parent} would hold {total:,} bytes of records, {ALL_BYTES:,} at most; publish "
            "fewer runs or rows"
        )


def newest(records: Sequence[Record]) -> list[Record]:
    """The last of each measurement that was made more than once."""
    return list({record.measurement.question: record for record in records}.values())


def shrink(records: Sequence[Record]) -> list[Record]:
    """The same measurements with small details; the corruptions of a set become one record."""
    corrupted: dict[tuple[Any, ...], list[Record]] = {}
    kept: list[Record] = []
    for record in records:
        m = record.measurement
        parts = str(m.row).split("/")
        if record.kind == "robustness" and len(parts) == 3 and "right" in record.details:
            group = (parts[0], m.data_hash, m.limit, m.seed, m.domain)
            corrupted.setdefault(group, []).append(record)
        else:
            kept.append(_small(record))
    return kept + [merged_corruptions(group) for group in corrupted.values()]


def _small(record: Record) -> Record:
    details, row = record.details, record.settings.get("row")
    kept: Mapping[str, Sequence[str]] = {
        "robustness": () if "@" in str(row) else ("right",),
        "segmentation": ("areas", "confusion") if row in (None, "clean") else ("areas",),
        "language": ("block",),
        "analysis": _INSIDE,
    }
    small = {name: details[name] for name in kept.get(record.kind, details) if name in details}
    if record.kind == "segmentation":
        small["num_classes"] = classes = len(details["confusion"])
        small["areas"] = pack_areas(unpack_areas(details["areas"], classes))
    elif record.kind == "language":
        losses = np.asarray(details.get("block_nll", []))
        if not np.isfinite(losses).all():
            raise InputError(
                f"{record.settings.get('label')}, {row}: a loss is no number, so its network has "
                "diverged and its differences have none; it cannot be published"
            )
        small[MILLI] = np.round(1000 * losses).astype(int).tolist()
    elif record.kind == "analysis":
        small = mapped(lambda x: round(x, 5) if isinstance(x, float) else x, small)
    return replace(record, details=small)
