"""The model of a run: the network that its recipe describes, with the weights of its folder."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import timm
import torch
from torch import Tensor

from pidformer.convert import convert
from pidformer.errors import InputError
from pidformer.fields import read_json
from pidformer.models import PixelModel
from pidformer.models.build import REFUSALS, build_classifier, build_segmenter
from pidformer.models.language.folder import read_config, read_object
from pidformer.models.options import check_memory, check_options
from pidformer.runs.folder import read_model_info, read_recipe
from pidformer.runs.weights import Weights, put_weights, run_weights

if TYPE_CHECKING:
    from pidformer.data.text import Tokenizer
    from pidformer.models.causal_lm import PIDformerForCausalLM

TIMM = "timm:"
"""Before the name of a model that is timm's own."""
HUB, HUB_LENGTH = "hf:", 128
"""Before a folder of Hugging Face's, and the tokens that a text model of one reads at a time."""


class LanguageModel(NamedTuple):
    model: "PIDformerForCausalLM"
    tokenizer: "Tokenizer"
    length: int
    """Tokens per sequence in training."""


def load(
    run: str | Path, *, gains: Any = None, ema: bool = False, weights: Weights = "auto"
) -> Any:
    """The model of a run folder, ready to use, in evaluation mode.

    For image runs a `PixelModel`, which takes pixels in [0, 1]; for language runs a
    `PIDformerForCausalLM` (`load_language` gives its tokenizer too).

    `gains` replaces the controller the run was trained with; a warning names both. `weights` are
    "auto" (the best ones if the run keeps them, else the last), "best", "model" (the last) or
    "ema" (the averaged ones, as with `ema=True`). An unfinished run has those of its newest
    checkpoint.
    """
    run, weights = Path(run), "ema" if ema else weights
    recipe = read_recipe(run)
    if recipe.get("task") == "language":
        return load_language(run, gains=gains, weights=weights).model
    info = read_model_info(run)
    model = _load_network(run, recipe, info, gains, weights)
    return PixelModel(model, info["mean"], info["std"]).eval()


def load_language(
    folder: str | Path, *, gains: Any = None, weights: Weights = "auto"
) -> LanguageModel:
    """The model of a run folder, or of one written by `save_pretrained`, and its tokenizer.

    `gains` and `weights` as in `load`.
    """
    from pidformer.data.text import tokenizer_from

    folder = Path(folder)
    if not (folder / "recipe.yaml").exists() and (folder / "config.json").exists():
        return _load_exported(folder, gains)
    recipe = read_recipe(folder)
    if recipe.get("task") != "language":
        raise InputError(f"run {folder} is no language model; its task is {recipe.get('task')}")
    info = read_model_info(folder)
    tokenizer, build = tokenizer_from(info["tokenizer"]), info["build"]
    _check_vocabulary(folder, build["vocab_size"], tokenizer)
    model = _load_network(folder, recipe, info, gains, weights)
    return LanguageModel(model.eval(), tokenizer, build["length"])


def load_text(name: str | Path, **options: Any) -> LanguageModel:
    """`load_language`, and of `hf:FOLDER` a text model of a type that can be converted."""
    if not str(name).startswith(HUB):
        return load_language(name, **options)
    from pidformer.convert.hugging_face import from_pretrained, load_plain
    from pidformer.data.text import tokenizer_from

    if options.get("gains") is not None or options.get("weights", "auto") != "auto":
        raise InputError(f"other gains and averaged weights are for run folders, not for {name}")
    folder = Path(str(name)[len(HUB) :])
    model = (from_pretrained if "pidformer" in read_config(folder) else load_plain)(folder).eval()
    tokens = read_object(folder / "tokenizer.json")
    tokenizer = tokenizer_from({"kind": "subwords", "definition": tokens})
    if tokenizer.size > model.config.vocab_size:  # a table may have rows that no token uses
        _check_vocabulary(folder, model.config.vocab_size, tokenizer)
    length = getattr(model.config, "max_position_embeddings", None) or HUB_LENGTH
    return LanguageModel(model, tokenizer, min(HUB_LENGTH, length))


def initial_model(run: str | Path) -> Any:
    """The classifier, or segmenter, of a run as it was before its first step, ready to use.

    Drawn anew from the run's seed; a run that began with the weights of another is refused.
    """
    run = Path(run)
    recipe, info = read_recipe(run), read_model_info(run)
    begun = recipe["model"].get("init") or (recipe.get("segmentation") or {}).get("backbone")
    if begun is not None:
        raise InputError(f"run {run} began with the weights of {begun}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe["seed"])
        model = build_network(recipe, info["build"])
    return PixelModel(model, info["mean"], info["std"]).eval()


def build_network(recipe: Mapping[str, Any], build: Mapping[str, Any]) -> Any:
    """The network of a resolved recipe, with fresh weights; `build` is what the data add."""
    if recipe.get("task") == "language":
        from pidformer.models.language.build import build_language_model  # needs the extra `lm`

        return build_language_model(recipe["model"], **build)
    if recipe.get("task") == "segmentation":
        return build_segmenter(recipe["model"], recipe["segmentation"]["decoder"], **build)
    if recipe["model"]["name"].startswith(TIMM):
        return _build_timm(recipe["model"], **build)
    return build_classifier(recipe["model"], **build)


def fill_network(
    recipe: Mapping[str, Any],
    info: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    run: Path,
    gains: Any = None,
) -> Any:
    """The network of a run folder with these weights, if they fit; `gains` if it is given others,
    which stand in `recipe`."""
    model = build_network(recipe, info["build"])
    what = "its recipe.yaml and model.json"
    if gains is not None:
        what = f"gains {gains}: a gate, a learned reference and learned gains are weights"
    put_weights(model, weights, f"the weights in {run} do not fit {what}")
    return model


def check_timm(name: str) -> None:
    if not timm.is_model(name):
        near = timm.list_models(f"*{name.split('.')[0]}*")[:3]
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise InputError(f"timm has no model {name!r}{hint}")


def _build_timm(
    config: Mapping[str, Any], *, num_classes: int, channels: int, image_size: int
) -> Any:
    """timm's own model with fresh weights, converted if there are gains."""
    name = config["name"].removeprefix(TIMM)
    if not config.get("attention_residual", True):
        raise InputError(
            f"{config['name']} keeps its residuals; attention_residual=false is for pid_* models"
        )
    check_timm(name)
    options = config.get("options", {})
    check_options(options, "classification", is_timm=True)
    check_memory(options, "classification")
    sizes = {"num_classes": num_classes, "in_chans": channels, "img_size": image_size}
    try:
        model = timm.create_model(name, pretrained=False, **sizes, **options)
    except REFUSALS as error:
        raise InputError(f"timm model {name} with {sizes | options}: {error}") from None
    if config.get("gains") is None:
        model.gains = None  # as our own models say that there is no controller
        if hasattr(model, "blocks"):
            model._no_split_modules = (type(model.blocks[0]).__name__,)  # for sharding
        return model
    return convert(
        model,
        config["gains"],
        first_layer=config.get("first_layer", "free"),
        learn_gains=config.get("learn_gains", False),
        inplace=True,
    )


def _load_network(
    run: Path, recipe: Mapping[str, Any], info: Mapping[str, Any], gains: Any, weights: Weights
) -> Any:
    """The network of a run folder with its weights, and with other gains if asked for."""
    found = run_weights(run, weights)
    if gains is None:
        return fill_network(recipe, info, found, run)
    trained = build_network(recipe, info["build"]).gains
    changed = {**recipe, "model": recipe["model"] | {"gains": gains}}
    model = fill_network(changed, info, found, run, gains)
    if model.gains != trained:
        warnings.warn(
            f"run {run} was trained with gains {trained}, loaded with {model.gains}", stacklevel=3
        )
    return model


def _load_exported(folder: Path, gains: Any) -> LanguageModel:
    from pidformer.data.text import tokenizer_from
    from pidformer.data.text.tokenizers import load_tokenizer
    from pidformer.models.causal_lm import PIDformerForCausalLM
    from pidformer.models.language.build import read_pretrained

    kind = read_config(folder)["model_type"]
    if kind != PIDformerForCausalLM.config_class.model_type:  # it would start with fresh weights
        raise InputError(
            f"{folder} holds a model of {kind}, not a language model of ours; load a converted one "
            "with pf.from_pretrained"
        )
    if not (folder / "tokenizer.json").is_file():
        raise InputError(f"{folder} has no tokenizer.json; save its tokenizer there")
    options = {} if gains is None else {"gains": gains}
    model = read_pretrained(PIDformerForCausalLM, folder, **options)
    kept = folder / "vocabulary.json"  # our words, which spell themselves without Hugging Face
    tokenizer = tokenizer_from(read_json(kept)) if kept.exists() else load_tokenizer(str(folder))
    _check_vocabulary(folder, model.config.vocab_size, tokenizer)
    return LanguageModel(model.eval(), tokenizer, model.config.max_position_embeddings)


def _check_vocabulary(folder: Path, size: int, tokenizer: "Tokenizer") -> None:
    if size != tokenizer.size:
        raise InputError(
            f"the weights in {folder} are for a vocabulary of {size}, its tokenizer has "
            f"{tokenizer.size}; they do not belong together"
        )
