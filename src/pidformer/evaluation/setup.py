"""What the rows of an evaluation share: the model, the clean images, and where the sets are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from pidformer import ranks
from pidformer.data import EvalImages, ImageSource, open_images
from pidformer.data.arguments import Resident
from pidformer.data.benchmarks import find_set
from pidformer.data.imagenet import imagenet_classes
from pidformer.data.sources import shorter_side
from pidformer.data.views import relabel, sample
from pidformer.errors import InputError
from pidformer.files import named_data
from pidformer.runs.open import Subject

Domain = Literal["pixel", "normalized"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A model on a device, and images to show it. Nothing is read before it is asked for."""

    subject: Subject
    location: str | Path
    device: torch.device
    split: str = "val"
    """Which part of the set holds the clean images."""
    domain: Domain = "pixel"
    seed: int = 0
    limit: int | None = None
    batch_size: int | None = None
    """Images at a time; None for what the device takes (`at_once`)."""
    most: int = 1024
    """The most images at a time where `batch_size` is None."""
    workers: int = 0
    allow_missing: bool = False

    def __post_init__(self) -> None:
        if self.domain not in ("pixel", "normalized"):
            raise InputError(f"domain must be pixel or normalized, got {self.domain!r}")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"limit must be at least 1 image, got {self.limit}")
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError(f"batch size must be at least 1, got {self.batch_size}")

    @cached_property
    def model(self) -> nn.Module:
        return self.subject.model.to(self.device)

    @cached_property
    def whole(self) -> ImageSource:
        """All clean images, labelled by the model's outputs."""
        return self.in_model_classes(open_images(self.location, self.split))

    @cached_property
    def source(self) -> ImageSource:
        """The clean images that are shown: `limit` of them."""
        return self.whole if self.limit is None else sample(self.whole, self.limit, self.seed)

    def sampled_alike(self, source: ImageSource) -> ImageSource:
        """The same share of other images as `limit` leaves of the clean ones."""
        share = len(self.source) / len(self.whole)
        return sample(source, max(1, round(share * len(source))), self.seed)

    @cached_property
    def clean(self) -> EvalImages:
        return self.batches(self.source)

    @cached_property
    def data_hash(self) -> str:
        return images_hash(self.source, self.image_size, self.subject.crop_ratio)

    @cached_property
    def image_size(self) -> int:
        return self.subject.image_size or shorter_side(self.source)

    @property
    def at_once(self) -> int:
        """Images at a time: 128; on a GPU, which waits for its host, 128 of 224 pixels' worth."""
        if self.batch_size is not None:
            return self.batch_size
        many = 128 * 224**2 // self.image_size**2 if self.device.type == "cuda" else 128
        return min(max(many, 1), self.most)

    def smaller(self) -> Setup | None:
        """With half the images at a time; None where their number was given, or is one."""
        if self.batch_size is not None or self.at_once == 1:
            return None
        return replace(self, most=self.at_once // 2)

    @property
    def scale(self) -> tuple[Sequence[float], Sequence[float]]:
        """The model's own mean and std, which attacks in its normalised domain need."""
        if self.subject.scale is None:
            raise InputError(
                f"{self.subject.name} does not show its normalisation; return a "
                "pidformer.PixelModel(model, mean, std), or stay in the domain pixel"
            )
        return self.subject.scale

    def batches(self, source: ImageSource, resident: Resident = "auto") -> EvalImages:
        return EvalImages(
            source,
            image_size=self.image_size,
            batch_size=self.at_once,
            crop_ratio=self.subject.crop_ratio,
            device=self.device,
            num_workers=self.workers,
            resident=resident,
            rank=ranks.rank(),
            world_size=ranks.size(),
        )

    def in_model_classes(self, source: ImageSource) -> ImageSource:
        """The same images, labelled by the model's outputs where both have names."""
        known = self._classes(len(source.classes))
        numbers = tuple(str(number) for number in range(len(source.classes)))
        if known is None or tuple(source.classes) in (known, numbers):
            return source
        return relabel(source, known)

    def outputs(self, classes: Sequence[str]) -> list[int]:
        """The outputs of the model that these classes have."""
        known = self._classes(len(classes)) or imagenet_classes()
        return [known.index(name) for name in classes]

    def foreign(self, classes: Sequence[str]) -> str | None:
        """Why the model cannot be asked about these classes, if it cannot."""
        known = set(self._classes(1000) or imagenet_classes())
        lacking = [name for name in classes if name not in known]
        if not lacking:
            return None
        return f"the model does not know {len(lacking)} of its {len(classes)} classes"

    def _classes(self, count: int) -> tuple[str, ...] | None:
        """Names of the model's outputs; a thousand without names are ImageNet's."""
        if self.subject.classes is not None:
            return self.subject.classes
        outputs = getattr(getattr(self.model, "model", self.model), "num_classes", None)
        return imagenet_classes() if outputs == 1000 and count != 1000 else None

    def place(self, name: str) -> Path:
        """Where a published set is."""
        found = self._find(name)
        if found is None:
            raise InputError(f"no {name} in {self.location}")
        return found

    def absent(self, name: str) -> str | None:
        return None if self._find(name) is not None else f"no {name} in {self.location}"

    def absent_split(self, split: str) -> str | None:
        try:
            open_images(self.location, split)
        except InputError:
            return f"no split {split!r} in {self.location}"
        return None

    def _find(self, name: str) -> Path | None:
        folder = Path(self.location)
        if not folder.is_dir():
            return None
        return find_set(folder, name) or find_set(folder.resolve().parent, name)


def images_hash(source: ImageSource, image_size: int, crop_ratio: float) -> str:
    """16 hex digits of which images a model is shown: their number, labels, names and size."""
    digest = hashlib.sha256(source.labels.numpy().tobytes())
    for index in range(0, len(source), max(1, len(source) // 64)):
        digest.update(source.name(index).encode())
    digest.update(f"{image_size} {crop_ratio}".encode())
    return digest.hexdigest()[:16]


def data_location(subject: Subject, data: str | Path | None) -> str | Path:
    """Where a model's images are: as given, or the digits, if it was trained on them."""
    if data is None and subject.data == "digits":
        return "digits"
    trained = f", trained on {subject.data}," if subject.data else ""
    return named_data(data, f"{subject.name}{trained} needs images")
