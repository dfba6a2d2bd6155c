"""Parts of an image set, a sample of it as one batch, the same images under other class lists."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pidformer.data.arguments import check_counts
from pidformer.data.images import EvalImages
from pidformer.data.loaders import Batch
from pidformer.data.randomness import sampled
from pidformer.data.sources import Fetchable, ImageSource, stored_side
from pidformer.errors import InputError, some


@dataclass(frozen=True, eq=False)
class ImageView:
    """The images `indices` of `source`, in that order, with labels and classes of their own."""

    source: ImageSource
    indices: np.ndarray  # int64 (N,)
    labels: Tensor  # int64 (N,)
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.indices) != len(self.labels):
            raise InputError(
                f"a view needs a label for each image, got {len(self.indices)} images "
                f"and {len(self.labels)} labels"
            )

    @property
    def channels(self) -> int:
        return self.source.channels

    @property
    def short_side(self) -> int | None:
        return stored_side(self.source)

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        return self.source.name(int(self.indices[index]))

    def decode(self, index: int) -> Image.Image:
        return self.source.decode(int(self.indices[index]))

    def fetch(self, indices: list[int]) -> None:
        if isinstance(self.source, Fetchable):
            self.source.fetch(self.indices[indices].tolist())


def relabel(source: ImageSource, classes: Sequence[str]) -> ImageView:
    """The same images, labelled by their class's place in `classes`; -1 (no class) stays -1."""
    places = _places(classes)
    present = [source.classes[label] for label in source.labels.unique().tolist() if label >= 0]
    foreign = [name for name in present if name not in places]
    if foreign:
        raise InputError(
            f"{len(foreign)} of {len(present)} classes of the images are not among the "
            f"{len(places)} to label them with: {some(foreign)}; both must use the same names"
        )
    table = torch.tensor([*(places.get(name, -1) for name in source.classes), -1])
    labels = table[source.labels]  # -1 takes the last entry
    return ImageView(source, np.arange(len(source)), labels, tuple(classes))


def restrict(source: ImageSource, classes: Sequence[str]) -> ImageView:
    """Only the images of these classes; labels and classes stay those of the source."""
    places = _places(source.classes)
    absent = [name for name in _places(classes) if name not in places]
    if absent:
        raise InputError(
            f"{len(absent)} of {len(classes)} classes are not in the image set: {some(absent)}; "
            f"it has {some(source.classes)}"
        )
    wanted = torch.tensor([places[name] for name in classes], dtype=torch.int64)
    indices = torch.isin(source.labels, wanted).nonzero()[:, 0]
    if not len(indices):
        raise InputError(f"the image set has no image of {some(classes)}")
    return ImageView(source, indices.numpy(), source.labels[indices], source.classes)


def sample(source: ImageSource, count: int, seed: int = 0) -> ImageView:
    """`count` images drawn without replacement, in stored order; all when there are no more.

    A function of (seed, number of images) alone: every model, and every corruption of a set, is
    shown the same ones. A larger count contains a smaller one.
    """
    check_counts(count=count, seed=seed)
    indices = sampled(len(source), count, seed)
    return ImageView(source, indices, source.labels[indices], source.classes)


def sample_images(
    source: ImageSource,
    count: int = 1000,
    seed: int = 0,
    *,
    image_size: int,
    crop_ratio: float = 0.875,
    device: str | torch.device = "cpu",
    corrupt_limit: float = 0.001,
) -> Batch:
    """`count` images drawn with `seed`, all if there are fewer: (count, C, S, S) in [0, 1].

    Prepared as for evaluation. The same images whatever the model, and those of a smaller count
    are among those of a larger one (`sample`). Unreadable ones are left out, up to
    `corrupt_limit` of the sample.
    """
    if count < 1:
        raise InputError(f"the number of images must be at least 1, got {count}")
    loader = EvalImages(
        sample(source, count, seed),
        image_size=image_size,
        batch_size=256,
        crop_ratio=crop_ratio,
        device=device,
        resident=False,
        corrupt_limit=corrupt_limit,
    )
    batches = list(loader)
    if not batches:
        raise InputError("the image set has no readable image; there is nothing to measure")
    images, labels = zip(*batches, strict=True)
    return Batch(torch.cat(images), torch.cat(labels))


def _places(classes: Sequence[str]) -> dict[str, int]:
    places = {name: place for place, name in enumerate(classes)}
    if len(places) < len(classes):
        twice = [name for place, name in enumerate(classes) if places[name] != place]
        raise InputError(f"class names must differ; given more than once: {some(twice)}")
    if not places:
        raise InputError("there are no class names; give at least one")
    return places
