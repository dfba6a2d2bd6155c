"""Run folders from models that others trained, with a controller put in."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pidformer.control.pid import FirstLayer
from pidformer.convert import convert
from pidformer.convert.mark import marks, unmarked
from pidformer.data.imagenet import imagenet_classes
from pidformer.errors import InputError
from pidformer.fields import mapped
from pidformer.files import atomic_folder, new_folder
from pidformer.models.language.folder import gguf_hint
from pidformer.runs.folder import (
    image_info,
    read_model_info,
    read_recipe,
    save_weights,
    write_model_info,
    write_recipe,
)
from pidformer.runs.model import TIMM, fill_network
from pidformer.runs.open import open_subject
from pidformer.runs.recipe import DataRecipe, ModelRecipe, Recipe, recipe_from
from pidformer.runs.weights import run_weights

TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges*", "special_tokens*", "preprocessor_config.json")


def convert_run(
    source: str,
    gains: Any,
    out: str | Path,
    *,
    layers: Sequence[int] | None = None,
    first_layer: FirstLayer = "free",
) -> dict[str, Any]:
    """Put a controller into `source` and write it to the new folder `out`; what was made.

    - `timm:NAME` or `timm:NAME@FILE`: a run folder that train (as model.init), evaluate and
      analyze take
    - a run folder: the same run with these gains
    - a folder of Hugging Face's `save_pretrained`, also as `hf:FOLDER`: the same, for
      `pf.from_pretrained`
    """
    out = new_folder(out)
    path = Path(source.removeprefix("hf:"))  # as evaluate and analyze write it
    if (path / "recipe.yaml").exists():
        return _from_run(path, gains, out, layers, first_layer)
    if (path / "config.json").exists():
        return _from_hugging_face(path, gains, out, layers, first_layer)
    if source.startswith(TIMM):
        return _from_timm(source, gains, out, layers, first_layer)
    raise InputError(
        f"{source!r} is neither timm:NAME, nor a run folder, nor a folder with a config.json"
        f"{gguf_hint(path)}"
    )


def _from_timm(source: str, gains: Any, out: Path, layers: Any, first: FirstLayer) -> Any:
    subject = open_subject(source)
    inner: Any = subject.model.model
    model = convert(inner, gains, layers=layers, first_layer=first, inplace=True)
    count, scale = model.num_classes, subject.scale
    assert scale is not None and subject.image_size is not None
    recipe = Recipe(
        model=ModelRecipe(
            name=TIMM + source.removeprefix(TIMM).partition("@")[0],
            gains=_plain(model.gains),
            first_layer=first,
        ),
        data=DataRecipe(
            name="imagenet" if count == 1000 else "unknown",
            image_size=subject.image_size,
            mean=scale[0],
            std=scale[1],
            crop_ratio=subject.crop_ratio,
        ),
    )
    classes = imagenet_classes() if count == 1000 else [str(n) for n in range(count)]
    info = image_info(classes, subject.image_size, *scale)
    return _write(out, recipe.to_dict(), info, model.state_dict(), model.gains)


def _from_run(run: Path, gains: Any, out: Path, layers: Any, first: FirstLayer) -> Any:
    recipe, info = read_recipe(run), read_model_info(run)
    weights = run_weights(run)
    if any(".gains." in key for key in weights):
        raise InputError(f"run {run} has learned its gains; it cannot be given others")
    if layers is not None:
        raise InputError("layers are for timm and Hugging Face models; give a run gains by layer")
    recipe["model"] |= {"gains": _plain(gains), "first_layer": first}
    # What cannot be loaded is not written. The recipe is written as it was: so the two are twins.
    model = fill_network(recipe_from(recipe).to_dict(), info, weights, run, gains)
    weights = unmarked(weights) | marks(model.state_dict())
    return _write(out, recipe, info, weights, gains)


def _from_hugging_face(path: Path, gains: Any, out: Path, layers: Any, first: FirstLayer) -> Any:
    from pidformer.convert.hugging_face import load_plain  # needs the extra `lm`

    model = convert(load_plain(path), gains, layers=layers, first_layer=first, inplace=True)
    with atomic_folder(out) as folder:
        model.save_pretrained(folder)
        for pattern in TOKENIZER_FILES:
            for file in path.glob(pattern):
                shutil.copy(file, folder)
    return {"run": str(out), "model": type(model).__name__, "gains": str(gains)}


def _write(out: Path, recipe: Any, info: Any, weights: Any, gains: Any) -> dict[str, Any]:
    with atomic_folder(out) as folder:
        write_model_info(folder, json.loads(json.dumps(info)))
        write_recipe(folder, recipe)
        save_weights(folder / "model.safetensors", weights)
    return {"run": str(out), "model": recipe["model"]["name"], "gains": str(gains)}


def _plain(gains: Any) -> Any:
    """Gains as YAML has them."""
    return mapped(lambda layer: layer.to_dict() if hasattr(layer, "to_dict") else layer, gains)
