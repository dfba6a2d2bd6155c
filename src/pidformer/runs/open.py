"""The model under test that a command names: a run folder, timm's, Hugging Face's, a user's."""

import importlib
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
from timm.data import resolve_model_data_config
from torch import nn

from pidformer.errors import InputError, cut, shortened
from pidformer.models import PixelModel
from pidformer.models.gains import ModelGains, resolve_gains
from pidformer.models.language.folder import read_config, read_object
from pidformer.runs.folder import load_weights, read_model_info, read_recipe, trained_on
from pidformer.runs.model import HUB, TIMM, check_timm, load
from pidformer.runs.twins import recipe_hash
from pidformer.runs.weights import facts_of, fingerprint, put_weights, run_weights

_IMAGES = "classification"
_FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
PREPROCESSOR = "preprocessor_config.json"
_READING = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model under test, and what a record says about it; a classifier takes pixels in [0, 1]."""

    name: str
    """The name it was asked for by."""
    label: str
    """Short, for tables."""
    model: nn.Module
    image_size: int | None = None
    """None takes the size of the images."""
    crop_ratio: float = 1.0
    classes: tuple[str, ...] | None = None
    """Names of the outputs, when known."""
    data: str | None = None
    """Where its training data were, or "digits", when known."""
    folder: Path | None = None
    """Its run folder, where its records go."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For records: weights, gains, and of a run train_seed, recipe."""

    @property
    def scale(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """mean and std of the normalisation inside the model; None if it is not ours to see."""
        if not isinstance(self.model, PixelModel):
            return None
        mean, std = self.model.mean.flatten().tolist(), self.model.std.flatten().tolist()
        return tuple(mean), tuple(std)


def open_subject(text: str | Path, *, gains: Any = None, ema: bool = False) -> Subject:
    """The model that `text` names, in evaluation mode.

    - a folder: a run of `pidformer train`; `gains` and `ema` as in `load`
    - `timm:NAME`: a timm model with its published weights; `timm:NAME@FILE` takes them from a
      safetensors file
    - `hf:FOLDER`: an image classifier as Hugging Face saves it, with its processor's mean, std and
      size; converted ones keep their controller
    - `module:function`: what the user's function returns when called without arguments, a module
      from images in [0, 1] to logits (wrap it in `PixelModel` to normalise inside). Its
      `image_size` is used if it has one. The current folder is searched first.
    """
    text = str(text)
    if Path(text).exists() or ":" not in text:
        run = Path(text)
        recipe, model = _classification(run), load(run, gains=gains, ema=ema)
        return _subject(run, recipe, model, fingerprint(model), model.model.gains, ema)
    if gains is not None or ema:
        raise InputError(f"other gains and averaged weights are for run folders, not for {text}")
    kind, _, name = text.partition(":")
    if kind == "hf":
        return _hugging_face(text, Path(name))
    return _timm(text, name) if kind == "timm" else _function(text, kind, name)


def task_of(name: str | Path) -> str:
    """What a model is for: the task of a run folder; "language" for `hf:FOLDER` of no image
    classifier, which `load_text` takes; anything else classifies images."""
    folder = Path(name)
    if folder.is_dir():
        return str(read_recipe(folder).get("task", _IMAGES))
    is_text = str(name).startswith(HUB) and not classifies(Path(str(name)[len(HUB) :]))
    return "language" if is_text else _IMAGES


def outline(run: str | Path) -> Subject:
    """What `open_subject` says about a run folder, without its network: `model` only normalises.

    For those who ask what was measured in many runs: building a network takes far longer than
    reading its weights.
    """
    run = Path(run)
    recipe = _classification(run)
    info, given = read_model_info(run), recipe["model"].get("gains")
    if recipe["model"]["name"].startswith(TIMM):  # its gains are known once it is converted
        gains = load(run).model.gains
    else:
        gains = resolve_gains(given, depth=len(given) if isinstance(given, list) else 0)
    model = PixelModel(nn.Identity(), info["mean"], info["std"]).eval()
    return _subject(run, recipe, model, run_fingerprint(run), gains)


def run_fingerprint(run: Path) -> str:
    """`fingerprint(load(run))` of a run of any task; of images, from the file alone."""
    if task_of(run) == "language":  # a file may have older names, and a tied table once
        return fingerprint(load(run))
    return fingerprint({f"model.{name}": tensor for name, tensor in run_weights(run).items()})


def _classification(run: Path) -> dict[str, Any]:
    recipe = read_recipe(run)
    if recipe.get("task", "classification") != "classification":
        raise InputError(f"run {run} is for {recipe['task']}, not for classification")
    return recipe


def _subject(
    run: Path,
    recipe: Mapping[str, Any],
    model: nn.Module,
    weights: str,
    gains: ModelGains,
    ema: bool = False,
) -> Subject:
    info = read_model_info(run)
    return Subject(
        name=str(run),
        label=run.resolve().name + (" (ema)" if ema else ""),
        model=model,
        image_size=info["build"]["image_size"],
        crop_ratio=recipe["data"]["crop_ratio"],
        classes=tuple(info["classes"]),
        data=trained_on(run),
        folder=run,
        facts=run_facts(run, weights, gains) | {"ema": ema},
    )


def run_facts(run: Path, weights: str, gains: object | None) -> dict[str, Any]:
    """What the records of a run say about its model; a model without a recipe has no seed."""
    recipe = read_recipe(run) if (run / "recipe.yaml").exists() else None
    return {
        "model": str(run),
        "label": run.resolve().name,
        "weights": weights,
        "gains": None if gains is None else str(gains),
        "train_seed": None if recipe is None else recipe["seed"],
        "recipe": None if recipe is None else recipe_hash(recipe),
    }


def _timm(text: str, rest: str) -> Subject:
    name, _, file = rest.partition("@")
    check_timm(name)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # one line will do
    try:
        with _weights_alone():
            model = timm.create_model(name, pretrained=not file)
    except Exception as error:  # the hub client raises many kinds when there is no network
        raise InputError(
            f"cannot get the weights of {name} ({type(error).__name__}); give a local file: "
            f"timm:{name}@weights.safetensors"
        ) from None
    if file:
        put_weights(model, load_weights(Path(file)), f"{file} does not fit {name}")
    config = resolve_model_data_config(model)
    pixels = PixelModel(model, config["mean"], config["std"]).eval()
    return Subject(
        name=text,
        label=name,
        model=pixels,
        image_size=config["input_size"][-1],
        crop_ratio=config["crop_pct"],
        facts=facts_of(pixels),
    )


@contextmanager
def _weights_alone() -> Iterator[None]:
    """torch reads weights and no other pickle, whatever it is asked for.

    timm asks a second time, for any pickle, where the weights-only reader fails with a TypeError.
    """
    with _READING:
        before = os.environ.get(_FORCED)
        os.environ[_FORCED] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_FORCED]
            else:
                os.environ[_FORCED] = before


def _function(text: str, module: str, name: str) -> Subject:
    sys.path.insert(0, "")
    try:
        function = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise InputError(
            f"{text!r} is no run folder, timm:NAME, hf:FOLDER or module:function ({error})"
        ) from None
    except AttributeError:
        raise InputError(f"module {module} has no function {name!r}") from None
    finally:
        sys.path.remove("")
    model = function()
    if not isinstance(model, nn.Module):
        raise InputError(f"{text} gave a {type(model).__name__}; it must return a torch module")
    return Subject(
        name=text,
        label=name,
        model=model.eval(),
        image_size=getattr(model, "image_size", None),
        facts=facts_of(model),
    )


def classifies(folder: Path) -> bool:
    """Whether a folder of Hugging Face's holds a classifier of images."""
    return "ForImageClassification" in str(read_config(folder)["architectures"][0])


def _hugging_face(text: str, folder: Path) -> Subject:
    """An image classifier in a folder of Hugging Face's `save_pretrained`, as a model of pixels."""
    fields = read_config(folder)
    if not classifies(folder):
        kind = shortened(fields["architectures"][0])
        raise InputError(f"{folder} holds a {kind}, which classifies no images")
    from pidformer.convert.hugging_face import from_pretrained  # needs the extra `lm`

    model = from_pretrained(folder) if "pidformer" in fields else _plain(folder)
    size, kept, mean, std = _pixels(folder, model.config)
    pixels = PixelModel(model, mean, std).eval()
    names = model.config.id2label or {}
    return Subject(
        name=text,
        label=folder.resolve().name,
        model=pixels,
        image_size=size,
        crop_ratio=kept,
        classes=tuple(str(names[n]) for n in sorted(names)) or None,
        facts=facts_of(pixels),
    )


def _plain(folder: Path) -> Any:
    from transformers import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, AutoConfig

    from pidformer.models.language.build import read_pretrained

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        kinds = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING[type(config)]
    except Exception as error:  # the library checks fields in many ways
        reason = cut(str(error) or type(error).__name__)
        raise InputError(f"{folder} is no image classifier of transformers ({reason})") from None
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)  # DeiT's: with a teacher and without
    kind = next((kind for kind in kinds if kind.__name__ in config.architectures), kinds[0])
    return read_pretrained(kind, folder)


def _pixels(folder: Path, config: Any) -> tuple[int, float, tuple[float, ...], tuple[float, ...]]:
    """Size, share kept by the crop, mean and std, as the model's own processor has them."""
    path = folder / PREPROCESSOR
    if not path.is_file():
        raise InputError(f"{folder} has no {PREPROCESSOR}, which says how pixels are normalised")
    given = read_object(path)
    try:
        factor = given.get("rescale_factor", 1 / 255) if given.get("do_rescale", True) else 1
        if abs(factor * 255 - 1) > 1e-3:
            raise InputError(f"{path}: rescale_factor must be 1/255: images are in [0, 1] here")
        normal = given.get("do_normalize", True)
        channels = getattr(config, "num_channels", 3)
        mean = _by_channel(given["image_mean"] if normal else 0, channels)
        std = _by_channel(given["image_std"] if normal else 1, channels)
        whole = _side(given.get("size"))
        size = _side(given.get("crop_size")) if given.get("do_center_crop") else whole
        size = size or whole or int(config.image_size)
        # ConvNeXt's processor, also ResNet's, names the share; from 384 pixels on it keeps all
        share = given.get("crop_pct") if size < 384 else None
        return size, min(1.0, float(share or size / (whole or size))), mean, std
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} does not say how pixels are normalised ({error!r})") from None


def _by_channel(given: Any, channels: int) -> tuple[float, ...]:
    """One number per channel, of a list or of one number for all, as processors have them."""
    return tuple(map(float, given if isinstance(given, list) else [given] * channels))


def _side(size: Any) -> int | None:
    """The side that {"height": 224, "width": 224}, {"shortest_edge": 256} or 224 gives."""
    if isinstance(size, dict):
        size = size.get("shortest_edge") or size.get("height")
    return int(size) if size else None
