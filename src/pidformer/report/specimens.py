"""What `pidformer analyze` looks at: a model, and what it is shown.

A classifier sees images of the validation set; of a segmentation run the encoder sees windows of
its images; a language model sees stretches of the validation text.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pidformer.data import ImageSource, open_images, sample_images
from pidformer.data.segmentation import SegmentSource, open_segmentation
from pidformer.data.sources import shorter_side
from pidformer.data.views import sample
from pidformer.errors import InputError
from pidformer.models import PixelModel
from pidformer.runs.folder import read_model_info, read_recipe
from pidformer.runs.model import load
from pidformer.runs.open import Subject, open_subject, task_of
from pidformer.runs.twins import recipe_hash
from pidformer.runs.weights import fingerprint


class Specimen(Protocol):
    """A model and its inputs: many for the tokens, few for the spectra, which cost more."""

    @property
    def subject(self) -> Subject: ...
    def inputs(self) -> list[Tensor]:
        """Many, then few."""
        ...

    def hashes(self) -> list[str]:
        """16 hex digits of which inputs they are."""
        ...


def open_specimen(
    name: str | Path, data: str | Path | None, counts: tuple[int, int], seed: int
) -> Specimen:
    """The model that `name` names (see `open_subject`), of any task, with its inputs."""
    task = task_of(name)
    if task == "language":
        return _text(Path(name), data, counts, seed)
    if task == "segmentation":
        subject, source = _encoder(Path(name)), _Pictures(open_segmentation(_given(data), "val"))
        return ImageSpecimen(subject=subject, source=source, counts=counts, seed=seed)
    subject = open_subject(name)
    location = data or subject.data
    if location is None or (data is None and location != "digits"):
        trained = f", trained on {location}," if location else ""
        raise InputError(f"{subject.name}{trained} needs images: say where with --data DIR")
    return ImageSpecimen(
        subject=subject, source=open_images(location, "val"), counts=counts, seed=seed
    )


@dataclass(frozen=True, kw_only=True)
class ImageSpecimen:
    """Images drawn with a seed, the same for every model."""

    subject: Subject
    source: ImageSource
    counts: tuple[int, int]
    seed: int

    @cached_property
    def image_size(self) -> int:
        return self.subject.image_size or shorter_side(self.source)

    def inputs(self) -> list[Tensor]:
        prepared = partial(
            sample_images,
            self.source,
            seed=self.seed,
            image_size=self.image_size,
            crop_ratio=self.subject.crop_ratio,
        )
        return [prepared(count).images for count in self.counts]

    def hashes(self) -> list[str]:
        found = []
        for count in self.counts:
            view = sample(self.source, count, self.seed)
            digest = hashlib.sha256(view.labels.numpy().tobytes())
            for index in range(0, len(view), max(1, len(view) // 64)):
                digest.update(view.name(index).encode())
            digest.update(f"{self.image_size} {self.subject.crop_ratio}".encode())
            found.append(digest.hexdigest()[:16])
        return found


@dataclass(frozen=True, kw_only=True)
class TextSpecimen:
    """Stretches of a text, each as long as those that the model was trained on."""

    subject: Subject
    windows: Tensor  # int64 (many, length)
    few: int
    data_hash: str

    def inputs(self) -> list[Tensor]:
        return [self.windows, self.windows[: self.few]]

    def hashes(self) -> list[str]:
        return [self.data_hash] * 2


@dataclass(frozen=True)
class _Pictures:
    """The images of a segmentation set, without their masks."""

    pairs: SegmentSource
    classes: tuple[str, ...] = ()
    channels: int = 3

    @cached_property
    def labels(self) -> Tensor:
        return torch.full((len(self.pairs),), -1)

    def __len__(self) -> int:
        return len(self.pairs)

    def name(self, index: int) -> str:
        return self.pairs.name(index)

    def decode(self, index: int) -> Image.Image:
        return self.pairs.decode(index).image


def _encoder(run: Path) -> Subject:
    """The encoder of a segmentation run; the decoder's recursion is another one."""
    whole, info, recipe = load(run), read_model_info(run), read_recipe(run)
    model = PixelModel(whole.model.encoder, info["mean"], info["std"]).eval()
    return Subject(
        name=str(run),
        label=run.resolve().name,
        model=model,
        image_size=info["build"]["image_size"],
        data=recipe["data"]["name"],
        folder=run,
        facts=_facts(fingerprint(whole), whole.model.gains, recipe),
    )


def _text(run: Path, data: str | Path | None, counts: tuple[int, int], seed: int) -> TextSpecimen:
    from pidformer.data.text import open_corpus
    from pidformer.runs.model import load_language  # needs the extra `lm`

    loaded, recipe = load_language(run), read_recipe(run)
    corpus = open_corpus(_given(data), "valid", loaded.tokenizer)
    places = np.arange(0, len(corpus.tokens) - loaded.length + 1, loaded.length)
    if not len(places):
        raise InputError(
            f"the valid text at {data} has {len(corpus.tokens)} tokens; {loaded.length} are needed"
        )
    chosen = np.random.default_rng(seed).permutation(len(places))[: counts[0]]
    windows = np.stack([corpus.tokens[places[k] : places[k] + loaded.length] for k in chosen])
    subject = Subject(
        name=str(run),
        label=run.resolve().name,
        model=loaded.model,
        data=recipe["data"]["name"],
        folder=run,
        facts=_facts(fingerprint(loaded.model), loaded.model.gains, recipe),
    )
    return TextSpecimen(
        subject=subject,
        windows=torch.from_numpy(windows.astype(np.int64)),
        few=counts[1],
        data_hash=corpus.fingerprint[:16],
    )


def _given(data: str | Path | None) -> str | Path:
    if data is None:
        raise InputError("this run needs its data: say where with --data DIR")
    return data


def _facts(weights: str, gains: Any, recipe: Any) -> dict[str, Any]:
    return {
        "weights": weights,
        "gains": None if gains is None else str(gains),
        "train_seed": recipe["seed"],
        "recipe": recipe_hash(recipe),
    }
