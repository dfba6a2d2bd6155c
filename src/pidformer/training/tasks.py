"""What the loop asks of a task, with the answers most tasks give, and the classification task."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pidformer.data import Batch, EvalImages, TrainImages, open_images, sample_images
from pidformer.data.sources import ImageSource, SegmentSource
from pidformer.errors import InputError, some
from pidformer.files import named_data
from pidformer.models import PixelModel
from pidformer.nn import ControlMeter, ControlScale
from pidformer.runs.folder import image_info
from pidformer.runs.model import build_network
from pidformer.runs.recipe import Recipe
from pidformer.runs.weights import start_from
from pidformer.statistics import percentage

LOOKED_AT = 64
"""Validation images on which the size of the control is measured."""


class Place(NamedTuple):
    """Where a process stands among those that train together."""

    rank: int
    world_size: int
    device: torch.device


class TrainData(Protocol):
    """Batches as a pure function of (epoch, step): that is what makes resuming exact."""

    @property
    def steps_per_epoch(self) -> int: ...

    @property
    def is_resident(self) -> bool:
        """Whether the data are kept on the device."""
        ...

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Any]: ...


@runtime_checkable
class Relocatable(Protocol):
    """Data whose batches depend on `is_resident`, which a resumed run therefore keeps."""

    def load_as(self, *, resident: bool | None) -> None: ...


class Task(Protocol):
    """A task turns a recipe into a model, batches, a loss and scores; the loop does the rest.

    Tasks inherit from it, and with it the defaults: a score that is better when higher, images as
    the unit of speed, a control that is not measured during training.
    """

    recipe: Recipe
    headline: str
    """The score to show."""
    is_lower_better: bool = False
    unit: tuple[str, int] = ("images", 1)
    """What speed is counted in, and how many of them a row of a batch has."""

    def build(self) -> nn.Module:
        """The network of the recipe, from the weights that the recipe starts from, if any."""
        model = build_network(self.recipe.to_dict(), self.model_info()["build"])
        if self.recipe.model.init is not None:
            start_from(model, self.recipe.model.init)
        return model

    def model_info(self) -> Mapping[str, Any]:
        """What loading the model needs beside the recipe."""
        ...

    def train_data(self, place: Place) -> TrainData: ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor: ...

    def size(self, batch: Any) -> Tensor | None:
        """How many values the loss is a mean over; None where every part of a batch has as many."""
        return None

    def count(self, model: nn.Module, place: Place) -> Tensor:
        """Sums over this process's share of the validation set, to be added over processes."""
        ...

    def scores(self, counts: Tensor) -> dict[str, float]: ...

    def control_scale(self, model: nn.Module, place: Place) -> ControlScale | None:
        """The size of the control as it acts now; None for a task that does not measure it."""
        return None


class ImageTask(Task, Protocol):
    """A task on images. Loaders give pixels in [0, 1], and the task normalises them.

    The loop trains the bare network, whose weights a run folder keeps; `pf.load` wraps it into the
    `PixelModel` of the same mean and standard deviation, so that attacks see pixels.
    """

    pixels: PixelModel
    val_source: ImageSource | SegmentSource

    def prepare(self, recipe: Recipe, channels: int) -> None:
        """Refuse a mean or standard deviation that does not fit the images' channels."""
        data = recipe.data
        if len(data.mean) != channels or len(data.std) != channels:
            values = f"{channels} value{'s' if channels > 1 else ''}"
            raise InputError(
                f"data.mean and data.std need {values}, one per channel of the images, "
                f"got {list(data.mean)} and {list(data.std)}"
            )
        self.recipe = recipe
        self.pixels = PixelModel(nn.Identity(), data.mean, data.std)

    def model_info(self) -> dict[str, Any]:
        data = self.recipe.data
        return image_info(self.val_source.classes, data.image_size, data.mean, data.std)

    def normalised(self, images: Tensor) -> Tensor:
        """Pixels in [0, 1] to the network's input."""
        return self.pixels.to(images.device).normalise(images)

    def loading(self, place: Place) -> dict[str, Any]:
        """Options of every loader: its part of the batches, and how it reads."""
        return {
            **place._asdict(),
            "num_workers": self.recipe.data.workers,
            "corrupt_limit": self.recipe.data.corrupt_limit,
        }


class Classification(ImageTask):
    """Image classification: cross entropy on hard or soft targets; top-1 and top-5."""

    headline = "top1"

    def __init__(self, recipe: Recipe, data: str | Path | None) -> None:
        if data is None and recipe.data.name == "digits":
            data = "digits"  # embedded
        self.location = named_data(data, f"this recipe trains on {recipe.data.name}")
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
