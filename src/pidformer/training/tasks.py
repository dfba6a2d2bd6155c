"""The task that a recipe names, and the classification task."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pidformer.data import Batch, EvalImages, TrainImages, open_images, sample_images
from pidformer.errors import InputError, some
from pidformer.nn import ControlMeter, ControlScale
from pidformer.runs.recipe import Recipe
from pidformer.runs.weights import check_initial
from pidformer.statistics import percentage
from pidformer.training.segmentation import Segmentation
from pidformer.training.task import ImageTask, Place, Task, required

LOOKED_AT = 64
"""Validation images on which the size of the control is measured."""


class Classification(ImageTask):
    """Image classification: cross entropy on hard or soft targets; top-1 and top-5."""

    headline = "top1"

    def __init__(self, recipe: Recipe, data: str | Path | None) -> None:
        is_embedded = data is None and recipe.data.name == "digits"
        self.location = "digits" if is_embedded else required(data, recipe)
        self.val_source = open_images(self.location, "val")
        self._eval_images: EvalImages | None = None
        self._looked_at: Tensor | None = None
        if int(self.val_source.labels.min()) < 0:
            raise InputError(
                f"val of {self.location} has images of no class (label -1); training needs a class "
                "for each"
            )
        if len(self.val_source.classes) < 2:
            raise InputError(
                f"{self.location} has one class only, {some(self.val_source.classes)}; a "
                "classifier needs two or more"
            )
        self.prepare(recipe, self.val_source.channels)

    def train_data(self, place: Place) -> TrainImages:
        data = self.recipe.data
        source = open_images(self.location, "train")
        if tuple(source.classes) != tuple(self.val_source.classes):
            raise InputError(
                f"train and val of {self.location} have different classes, so labels would not "
                f"match: {some(source.classes)}, and {some(self.val_source.classes)}"
            )
        return TrainImages(
            source,
            image_size=data.image_size,
            batch_size=data.batch_size,
            augment=self.recipe.augment,
            mean=data.mean,
            std=data.std,
            seed=self.recipe.seed,
            **self.loading(place),
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(self.normalised(batch.images)).float(), batch.targets)

    def count(self, model: nn.Module, place: Place) -> Tensor:
        """(top-1 hits, top-5 hits, summed loss, images)."""
        if self._eval_images is None:
            data = self.recipe.data
            self._eval_images = EvalImages(
                self.val_source,
                image_size=data.image_size,
                batch_size=max(1, min(data.batch_size // place.world_size, 512)),
                crop_ratio=data.crop_ratio,
                **self.loading(place),
            )
        totals = torch.zeros(4, dtype=torch.float64, device=place.device)
        for images, labels in self._eval_images:
            logits = model(self.normalised(images)).float()
            best = logits.topk(min(5, logits.shape[-1])).indices == labels[:, None]
            loss = F.cross_entropy(logits, labels, reduction="sum")
            hits = torch.stack([best[:, 0].sum(), best.sum()])
            totals += torch.cat([hits, loss[None], loss.new_tensor([len(labels)])]).double()
        return totals

    def scores(self, counts: Tensor) -> dict[str, float]:
        """Per cent, with Wilson's 95 % interval."""
        top1, top5, loss, total = counts.tolist()
        found = {"loss": loss / total, "images": total}
        for name, hits in (("top1", top1), ("top5", top5)):
            found |= percentage(name, round(hits), round(total))
        return found

    def control_scale(self, model: nn.Module, place: Place) -> ControlScale:
        """The size of the control as it acts now, on the same few images every time."""
        if self._looked_at is None:
            data = self.recipe.data
            self._looked_at = sample_images(
                self.val_source,
                LOOKED_AT,
                image_size=data.image_size,
                crop_ratio=data.crop_ratio,
                corrupt_limit=1.0,  # `count` judges the whole set
            ).images
        with ControlMeter(model) as meter:
            model(self.normalised(self._looked_at.to(place.device)))
        return meter.scale()


def build_task(recipe: Recipe, data: str | Path | None) -> Task:
    """The task that a recipe names; the weights it starts from must be there, if it has some."""
    if recipe.model.init is not None:
        check_initial(recipe.model.init)
    if recipe.task == "segmentation":
        return Segmentation(recipe, data)
    if recipe.task == "language":
        from pidformer.training.language import Language  # needs the extra `lm`

        return Language(recipe, data)
    return Classification(recipe, data)
