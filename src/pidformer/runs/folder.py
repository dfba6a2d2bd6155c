"""The files of a run folder: the one place that reads and writes them.

    RUN/recipe.yaml            the resolved recipe
    RUN/model.json             what the data add to it: classes, image size, vocabulary, place
    RUN/model.safetensors      the last weights (and best.safetensors, ema.safetensors if kept)
    RUN/checkpoints/step-N/    training state: *.safetensors, state.json, checksums.json
    RUN/results.jsonl          records

A checkpoint is written beside its place and renamed, so it is complete or not there; its files
carry checksums, so a damaged one is found and the one before it used. Nothing is ever unpickled,
and nothing outside the folder is opened: a run may come from a stranger.
"""

import hashlib
import json
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pidformer.errors import InputError, cut
from pidformer.fields import TEXTS, is_number, listed, parse_yaml, read_json
from pidformer.files import atomic_folder, atomic_path, check_links, write_whole
from pidformer.models.options import check_build, check_decoder, check_fields, check_model
from pidformer.runs.recipe import recipe_from

CHECKSUMS = "checksums.json"
IMAGE_INFO = ("num_classes", "channels", "image_size"), ("mean", "std", "classes")
TEXT_INFO = ("vocab_size", "length", "eos_token_id"), ("tokenizer",)
"""What model.json must say: in its section build, and beside it."""
_LISTS = {
    "mean": listed(is_number, "numbers"),
    "std": listed(lambda value: is_number(value) and value > 0, "numbers above 0"),
    "classes": TEXTS,
}
KEEP = 2
"""Checkpoints kept: the newest, and the one before it in case the newest is damaged."""

Tensors = Mapping[str, Tensor]


class Checkpoint(NamedTuple):
    step: int
    tensors: dict[str, dict[str, Tensor]]
    """By file: "model", "optimizer", and "ema" when one is kept."""
    state: dict[str, Any]


def save_weights(path: Path, tensors: Tensors) -> None:
    """Write tensors to a safetensors file, whole or not at all; one with two names (tied) once."""
    first: dict[Any, str] = {}
    for name, t in tensors.items():
        first.setdefault((t.data_ptr() or name, t.shape, t.stride(), t.dtype), name)
    whole = {name: tensors[name].detach().cpu().contiguous() for name in first.values()}
    with atomic_path(path) as temporary:
        save_file(whole, temporary)


def load_weights(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        raise InputError(f"no weights at {path}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InputError(
            f"{path} is not a readable safetensors file ({error}); copy it again, or delete it and "
            "train again: what a run's last checkpoint holds is written anew"
        ) from None


def save_checkpoint(
    run: Path, step: int, tensors: Mapping[str, Tensors], state: Mapping[str, Any]
) -> Path:
    """Write checkpoint `step`, then remove all but the newest `KEEP`."""
    folder = run / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{step:08d}"
    try:
        with atomic_folder(target) as temporary:
            for name, group in tensors.items():
                save_weights(temporary / f"{name}.safetensors", group)
            (temporary / "state.json").write_text(json.dumps(dict(state)))
            sums = {path.name: _checksum(path) for path in sorted(temporary.iterdir())}
            (temporary / CHECKSUMS).write_text(json.dumps(sums))
            shutil.rmtree(target, ignore_errors=True)  # only ever a damaged one of the same step
    except OSError as error:
        kept = _steps(run)
        last = f"the last good checkpoint is step {kept[-1]}" if kept else "none is saved yet"
        why = cut(getattr(error, "strerror", None) or error)
        raise InputError(
            f"cannot write a checkpoint to {folder} ({why}); {last}; "
            "make room and run the same command to continue"
        ) from None
    keep_newest(run, step)
    return target


def keep_newest(run: Path, step: int) -> None:
    """Keep the newest `KEEP` checkpoints up to `step`; later ones are damaged."""
    kept = [kept for kept in _steps(run) if kept <= step]
    for old in set(_steps(run)) - set(kept[-KEEP:]):
        shutil.rmtree(run / "checkpoints" / f"step-{old:08d}", ignore_errors=True)


def load_checkpoint(run: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None if there is none. Damaged ones are named."""
    for step in reversed(_steps(run)):
        folder = run / "checkpoints" / f"step-{step:08d}"
        damage = _damage(folder)
        if damage is None:
            files = sorted(folder.glob("*.safetensors"))
            tensors = {path.stem: load_weights(path) for path in files}
            return Checkpoint(step, tensors, read_json(folder / "state.json"))
        before = "using the one before it" if step != _steps(run)[0] else "there is none before it"
        warnings.warn(f"checkpoint {folder} is damaged ({damage}); {before}", stacklevel=2)
    return None


def has_progress(run: Path) -> bool:
    """Whether a run folder holds weights that would be lost."""
    return bool(_steps(run)) or (run / "model.safetensors").exists()


def read_model_info(run: Path) -> dict[str, Any]:
    """What `write_model_info` wrote; it must say what the task of the recipe needs."""
    is_text = read_recipe(run).get("task") == "language"
    path = run / "model.json"
    if not path.exists():
        raise InputError(
            f"{run} has no model.json, which says what its model is built for; copy the whole run "
            "folder, or run its training command again"
        )
    with _damage_named(path):
        info = read_json(path)
    if not isinstance(info, dict) or not isinstance(info.get("build"), dict):
        raise damaged(path, "it must have a section build")
    build, rest = TEXT_INFO if is_text else IMAGE_INFO
    missing = [n for n in build if n not in info["build"]] + [n for n in rest if n not in info]
    if missing:
        raise damaged(path, f"it does not say {', '.join(missing)}")
    check_build(info["build"], f"{path}: build")
    if not is_text:
        check_fields({name: info[name] for name in rest}, _LISTS, str(path))
    return info


def image_info(
    classes: Sequence[str], image_size: int, mean: Sequence[float], std: Sequence[float]
) -> dict[str, Any]:
    """What model.json says of every model of images."""
    build = {"num_classes": len(classes), "channels": len(mean), "image_size": image_size}
    return {"build": build, "mean": list(mean), "std": list(std), "classes": list(classes)}


def trained_on(run: Path) -> str | None:
    """Where the data of a run were when it was trained, or "digits"; None if it does not say."""
    if not (run / "model.json").exists() or not (run / "recipe.yaml").exists():
        return None
    found = read_model_info(run).get("data")
    if found is None and read_recipe(run)["data"].get("name") == "digits":
        return "digits"
    return found if isinstance(found, str) else None


def read_recipe(run: Path) -> dict[str, Any]:
    """The resolved recipe of a run folder, as plain data."""
    path = run / "recipe.yaml"
    if not path.exists():
        raise InputError(
            f"{run} is not a run folder (no recipe.yaml); train one with pidformer train"
        )
    check_links(run)
    with _damage_named(path):
        fields = parse_yaml(path.read_bytes(), "it")
    if not isinstance(fields, dict) or not isinstance(fields.get("seed"), int):
        raise damaged(path, "it must hold a seed and sections")
    for name in ("model", "data"):  # other sections may be null
        if not isinstance(fields.get(name), dict):
            raise damaged(path, f"{name} must be a section")
    task = fields.get("task", "classification")
    check_model(fields["model"], task, f"{path}: ")
    if task == "segmentation":
        held = fields.get("segmentation")
        check_decoder(held.get("decoder") if isinstance(held, dict) else held, f"{path}: ")
    with _damage_named(path):
        recipe_from(fields)
    return fields


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise damaged(path, error) from None


def damaged(path: Path, why: object) -> InputError:
    """What to say of a run's file that cannot be used as it is."""
    return InputError(
        f"{path} is damaged ({cut(why, 160)}); copy it again, or train into another folder with "
        "--out"
    )


def write_recipe(run: Path, fields: Mapping[str, Any]) -> None:
    write_whole(run / "recipe.yaml", yaml.safe_dump(dict(fields), sort_keys=False))


def write_model_info(run: Path, info: Mapping[str, Any]) -> None:
    """What the recipe does not say and building the model needs: classes, channels, pixel scale."""
    write_whole(run / "model.json", json.dumps(dict(info)))


def _steps(run: Path) -> list[int]:
    names = (path.name.removeprefix("step-") for path in (run / "checkpoints").glob("step-*"))
    return sorted(int(name) for name in names if name.isdecimal())


def _damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        sums = read_json(folder / CHECKSUMS)
        if not isinstance(sums, dict) or "state.json" not in sums:
            return f"{CHECKSUMS} does not name its files"
        if not set(sums) <= {path.name for path in folder.iterdir()}:
            return f"{CHECKSUMS} names files that are not beside it"
        for name, expected in sums.items():
            if _checksum(folder / name) != expected:
                return f"{name} does not match its checksum"
        if not isinstance(read_json(folder / "state.json"), dict):
            return "state.json holds no state"
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
