"""What the loop asks of a task, with the answers most tasks give."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from pidformer.data.sources import ImageSource, SegmentSource
from pidformer.errors import InputError
from pidformer.models import PixelModel
from pidformer.nn import ControlScale
from pidformer.runs.folder import image_info
from pidformer.runs.model import build_network
from pidformer.runs.recipe import Recipe
from pidformer.runs.weights import start_from


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
    """Data whose batches depend on `is_resident`: a resumed run goes on as it began."""

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
        """What every loader is told: where it stands, and how it reads."""
        return {
            **place._asdict(),
            "num_workers": self.recipe.data.workers,
            "corrupt_limit": self.recipe.data.corrupt_limit,
        }


def required(data: str | Path | None, recipe: Recipe) -> str | Path:
    """Where the data are; refused where nobody said so."""
    if data is None:
        raise InputError(
            f"this recipe trains on {recipe.data.name}; say where it is with --data DIR"
        )
    return data
