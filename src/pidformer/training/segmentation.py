"""The segmentation task: pixels labelled by windows."""

import warnings
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pidformer.data import Batch
from pidformer.data.segmentation import (
    IGNORED,
    EvalSegments,
    TrainSegments,
    confusion,
    open_segmentation,
    segmentation_scores,
)
from pidformer.errors import InputError
from pidformer.files import named_data
from pidformer.models.backbone import load_backbone
from pidformer.models.gains import is_gain, resolve_gains
from pidformer.models.segmenter import Segmenter
from pidformer.models.sliding import Sliding
from pidformer.runs.folder import load_weights, read_recipe
from pidformer.runs.recipe import Recipe
from pidformer.runs.weights import fingerprint, run_weights
from pidformer.training.tasks import ImageTask, Place


class Backbone(NamedTuple):
    """Weights that an encoder starts from, and where they come from."""

    name: str
    weights: Mapping[str, Tensor]
    gains: Any = None
    has_gains: bool = False

    def to_dict(self) -> dict[str, Any]:
        """For the run folder: name, gains and a hash of the weights."""
        return {"name": self.name, "gains": self.gains, "weights": fingerprint(self.weights)}


def read_backbone(where: str | None) -> Backbone | None:
    """A run folder, or a .safetensors file with timm's keys."""
    if where is None:
        return None
    path = Path(where)
    if path.is_dir():
        recipe = read_recipe(path)
        if recipe.get("task", "classification") != "classification":
            raise InputError(
                f"backbone {path} is a run of {recipe['task']}; give one of classification"
            )
        return Backbone(where, run_weights(path), recipe["model"].get("gains"), has_gains=True)
    if path.suffix != ".safetensors":
        raise InputError(
            f"backbone {where!r} must be a run folder or a .safetensors file; rewrite a .pth file "
            "with safetensors.torch.save_file(torch.load(FILE, weights_only=True)['model'], OUT)"
        )
    return Backbone(where, load_weights(path))


class Segmentation(ImageTask):
    """Cross entropy over labelled pixels; mIoU, pixel and mean accuracy over the whole set."""

    headline = "miou"

    def __init__(self, recipe: Recipe, data: str | Path | None) -> None:
        assert recipe.segmentation is not None  # filled in by Recipe
        self.location = named_data(data, f"this recipe trains on {recipe.data.name}")
        self.prepare(recipe, channels=3)
        self.own = recipe.segmentation
        self.val_source = open_segmentation(self.location, "val")
        self._eval: EvalSegments | None = None

    @cached_property
    def backbone(self) -> Backbone | None:
        """What the encoder starts from; not read by those who only evaluate."""
        return read_backbone(self.own.backbone)

    def build(self) -> Segmenter:
        model: Any = super().build()
        if self.backbone is not None:
            load_backbone(model.encoder, self.backbone.weights, self.backbone.name)
            if self.backbone.has_gains:
                self._compare_gains(model, self.backbone)
        return model

    def model_info(self) -> dict[str, Any]:
        data = self.recipe.data
        stride = self.own.stride or max(1, data.image_size * 15 // 16)
        inference = {"scale": list(self.own.scale), "window": data.image_size, "stride": stride}
        return super().model_info() | {
            "palette": self.val_source.palette.tolist(),
            "inference": inference,
            "backbone": self.backbone.to_dict() if self.backbone else None,
        }

    def train_data(self, place: Place) -> TrainSegments:
        data = self.recipe.data
        return TrainSegments(
            open_segmentation(self.location, "train"),
            crop=data.image_size,
            scale=self.own.scale,
            batch_size=data.batch_size,
            augment=self.own.augment,
            mean=data.mean,
            seed=self.recipe.seed,
            **self.loading(place),
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean over labelled pixels."""
        logits = model(self.normalised(batch.images)).float()
        total = F.cross_entropy(logits, batch.targets, ignore_index=IGNORED, reduction="sum")
        return total / self.size(batch).clamp(min=1)

    def size(self, batch: Batch) -> Tensor:
        """Labelled pixels, of which parts and processes have different numbers."""
        return (batch.targets != IGNORED).sum()

    def count(self, model: nn.Module, place: Place) -> Tensor:
        """The confusion matrix (K, K) as one line, and the pairs."""
        data = self.recipe.data
        if self._eval is None:
            self._eval = EvalSegments(
                self.val_source,
                batch_size=max(1, data.batch_size // place.world_size),
                **self.loading(place),
            )
        window = data.image_size
        sliding = Sliding(scale=self.own.scale, window=window, stride=window)
        classes = len(self.val_source.classes)
        totals = torch.zeros(classes**2 + 1, dtype=torch.float64, device=place.device)
        for images, masks, indices in self._eval:
            predicted = sliding.labels(lambda crops: model(self.normalised(crops)), images)
            totals[:-1] += confusion(masks, predicted, classes).sum(0).flatten()
            totals[-1] += len(indices)
        return totals

    def scores(self, counts: Tensor) -> dict[str, float]:
        """Per cent."""
        classes = len(self.val_source.classes)
        matrix = counts[:-1].view(classes, classes)
        return segmentation_scores(matrix) | {"images": float(counts[-1])}

    def _compare_gains(self, model: Segmenter, backbone: Backbone) -> None:
        before = resolve_gains(backbone.gains, len(model.encoder.blocks))
        left_out = [key for key in backbone.weights if is_gain(key)]
        if left_out and not any(map(is_gain, model.encoder.state_dict())):
            said = f"learned its gains, from {before}; they are left out, the segmenter takes "
            warnings.warn(f"backbone {backbone.name} {said}{model.gains}", stacklevel=2)
        elif before != model.gains:
            said = f"was trained with gains {before}, the segmenter takes {model.gains}"
            warnings.warn(f"backbone {backbone.name} {said}; both are in model.json", stacklevel=2)
