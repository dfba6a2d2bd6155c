"""What an analysis looks at: a model of any task, with inputs of its data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from pidformer.data import ImageSource, open_images, sample_images
from pidformer.data.segmentation import SegmentSource, open_segmentation
from pidformer.data.sources import shorter_side
from pidformer.data.views import sample
from pidformer.errors import InputError
from pidformer.evaluation.setup import data_location, images_hash
from pidformer.files import named_data
from pidformer.models import PixelModel
from pidformer.runs.folder import read_model_info
from pidformer.runs.model import load, load_text
from pidformer.runs.open import Subject, open_subject, run_facts, task_of
from pidformer.runs.weights import fingerprint, gains_of


@dataclass(frozen=True)
class Inputs:
    """A model and its inputs: many for the tokens, few for the spectra, which cost more."""

    subject: Subject
    take: Callable[[int], Tensor]
    data_hash: Callable[[int], str]
    """16 hex digits of which inputs they are."""
    what: str = "images"
    part: Callable[[Any], nn.Module] = lambda model: model
    """The part of a run's model that is looked at."""


def open_inputs(name: str | Path, data: str | Path | None, count: int, seed: int) -> Inputs:
    """The model of any task that `name` names, with up to `count` inputs drawn with `seed`."""
    if task_of(name) == "language":
        return _text(Path(name), data, count, seed)
    if task_of(name) == "segmentation":
        pictures = _Pictures(open_segmentation(named_data(data, "this model needs data"), "val"))
        return replace(_images(_segmenter(Path(name)), pictures, seed), part=_encoder)
    subject = open_subject(name)
    return _images(subject, open_images(data_location(subject, data), "val"), seed)


def _images(subject: Subject, source: ImageSource, seed: int) -> Inputs:
    size, ratio = subject.image_size or shorter_side(source), subject.crop_ratio

    def take(count: int) -> Tensor:
        return sample_images(source, count, seed, image_size=size, crop_ratio=ratio).images

    return Inputs(
        subject, take, lambda count: images_hash(sample(source, count, seed), size, ratio)
    )


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


def _segmenter(run: Path) -> Subject:
    """The encoder of a segmentation run; the decoder's recursion is another one."""
    whole, info = load(run), read_model_info(run)
    facts = run_facts(run, fingerprint(whole), whole.model.gains)
    return _subject(run, _encoder(whole), facts, image_size=info["build"]["image_size"])


def _encoder(whole: PixelModel) -> PixelModel:
    inner: Any = whole.model
    mean, std = whole.mean.flatten().tolist(), whole.std.flatten().tolist()
    return PixelModel(inner.encoder, mean, std).eval()


def _text(name: Path, data: str | Path | None, count: int, seed: int) -> Inputs:
    """Stretches of a text, each as long as those that the model was trained on."""
    from pidformer.data.text import open_corpus

    model, tokenizer, length = load_text(name)
    gains = getattr(model, "gains", None) or gains_of(model)
    facts = run_facts(name, fingerprint(model), gains)
    subject = _subject(name, model, facts)
    corpus = open_corpus(named_data(data, "this model needs data"), "valid", tokenizer)
    places = np.arange(0, len(corpus.tokens) - length + 1, length)
    if not len(places):
        raise InputError(
            f"the valid text at {data} has {len(corpus.tokens)} tokens; {length} are needed"
        )
    chosen = np.random.default_rng(seed).permutation(len(places))[:count]
    windows = np.stack([corpus.tokens[places[k] : places[k] + length] for k in chosen])
    found = torch.from_numpy(windows.astype(np.int64))
    held = corpus.fingerprint[:16]
    return Inputs(subject, lambda count: found[:count], lambda count: held, what="texts")


def _subject(run: Path, model: Any, facts: Mapping[str, Any], **more: Any) -> Subject:
    more["folder"] = run if run.is_dir() else None  # hf:FOLDER is not ours to write to
    return Subject(name=str(run), label=facts["label"], model=model, facts=facts, **more)
