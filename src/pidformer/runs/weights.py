"""Which weights a run has, and putting them into a model.

One rule, whatever the task: a run is used with the weights that its recipe asked to keep
(`train.keep_best`: best.safetensors, those with the best validation score), else with the last
ones (model.safetensors, or the newest checkpoint of an unfinished run). `weights="model"` names
the last ones and `"ema"` the averaged ones.
"""

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from pidformer.convert.mark import marks, unmarked
from pidformer.errors import InputError, check_known
from pidformer.files import check_links
from pidformer.models.backbone import misfit
from pidformer.models.gains import is_gain
from pidformer.nn.gains import LearnedGains, controlled_attention
from pidformer.runs.folder import load_checkpoint, load_weights

Weights = Literal["auto", "best", "model", "ema"]
HEADS = ("head.", "head_dist.")


def run_weights(run: Path, weights: Weights = "auto") -> dict[str, Tensor]:
    """The weights of a run folder: by the rule above ("auto"), or by name."""
    check_known("weights", weights, get_args(Weights))
    check_links(run)
    if weights == "auto":
        weights = "best" if (run / "best.safetensors").exists() else "model"
    path = run / f"{weights}.safetensors"
    if path.exists():
        return load_weights(path)
    checkpoint = load_checkpoint(run)
    if checkpoint is None or weights not in checkpoint.tensors:
        raise InputError(f"run {run} has no {weights} weights yet; train it first")
    return checkpoint.tensors[weights]


def check_initial(where: str | Path) -> None:
    """Refuse a place that holds no weights to start training from."""
    if not Path(where).exists():
        raise InputError(
            f"no run folder and no .safetensors file at {where}; say which with model.init=RUN"
        )


def start_from(model: nn.Module, where: str) -> None:
    """Give a model the weights of a run folder or a file, to train it further.

    A classification head for other classes stays fresh, with a warning; learned gains are taken
    where both have them. Whatever else does not fit is refused.
    """
    check_initial(where)
    path = Path(where)
    weights = _up_to_date(model, load_weights(path) if path.is_file() else run_weights(path))
    own = model.state_dict()
    weights = unmarked(weights) | marks(own)  # the recipe says which controller
    given = {key: value for key, value in weights.items() if key in own or not is_gain(key)}
    other = [k for k in given if k in own and given[k].shape != own[k].shape]
    if other and all(key.startswith(HEADS) for key in other):
        classes, wanted = len(given[other[0]]), len(own[other[0]])
        warnings.warn(
            f"{where} knows {classes} classes, the data have {wanted}: the head starts anew",
            stacklevel=2,
        )
        given |= {key: own[key] for key in other}
    if fault := misfit(own, given):
        raise InputError(
            f"model.init={where} does not fit the recipe's model ({fault}); give the model.name "
            "and model.options that it was made with"
        )
    model.load_state_dict(given, strict=False)


def put_weights(model: nn.Module, weights: Mapping[str, Tensor], refusal: str) -> None:
    """Give a model weights that must fit it to the name; others are refused in one line.

    A converted model has its gains from a recipe, whatever the mark of the weights says.
    """
    weights, state = _up_to_date(model, weights), model.state_dict()
    if mark := marks(state):
        weights = unmarked(weights) | mark
    own = {name: tuple(tensor.shape) for name, tensor in state.items()}
    given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in (*own, *given):
        if own.get(name) != given.get(name):
            raise InputError(
                f"{refusal} ({name} is {given.get(name, 'missing')} instead of "
                f"{own.get(name, 'missing')}); they do not belong together"
            )
    model.load_state_dict(dict(weights), strict=True)


def _up_to_date(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under their present names, for a model whose names have changed."""
    return getattr(model, "up_to_date", dict)(weights)


def fingerprint(model: nn.Module | Mapping[str, Tensor]) -> str:
    """16 hex digits of the weights: equal for equal names, shapes and values."""
    weights = model.state_dict() if isinstance(model, nn.Module) else model
    digest = hashlib.sha256()
    for name, tensor in sorted(unmarked(weights).items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def facts_of(model: nn.Module) -> dict[str, str | None]:
    """What tells a model from others in records: its weights, and its gains, which are none."""
    return {"weights": fingerprint(model), "gains": gains_of(model)}


def gains_of(model: nn.Module) -> str | None:
    """The gains of a model's attention, layer by layer where they differ; None without control."""
    layers = controlled_attention(model)
    laws = [x.gains.initial if isinstance(x.gains, LearnedGains) else x.gains for x in layers]
    if all(law is None for law in laws):
        return None
    texts = [str(law) for law in laws]
    found = texts[0] if len(set(texts)) == 1 else f"({', '.join(texts)})"
    is_free = all(layer.first_layer == "free" for layer in layers)
    return found if is_free else f"{found}, first layer controlled"
