"""What an analysis looks at: a model of any task, with inputs of its data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pidformer.data import ImageSource, open_images, sample_images
from pidformer.data.segmentation import SegmentSource, open_segmentation
from pidformer.data.sources import shorter_side
from pidformer.data.views import sample
from pidformer.errors import InputError
from pidformer.evaluation.setup import data_location, images_hash
from pidformer.files import named_data
from pidformer.models import PixelModel
from pidformer.models.language.folder import read_config, read_object
from pidformer.runs.folder import read_model_info, read_recipe
from pidformer.runs.model import load
from pidformer.runs.open import Subject, classifies, open_subject, run_facts, task_of
from pidformer.runs.weights import fingerprint

HUB, HUB_LENGTH = "hf:", 128
"""A folder of Hugging Face's, and the tokens that a text model of one reads at a time."""


@dataclass(frozen=True)
class Inputs:
    """A model and its inputs: many for the tokens, few for the spectra, which cost more."""

    subject: Subject
    take: Callable[[int], Tensor]
    data_hash: Callable[[int], str]
    """16 hex digits of which inputs they are."""
    what: str = "images"


def open_inputs(name: str | Path, data: str | Path | None, count: int, seed: int) -> Inputs:
    """The model that `name` names (see `open_subject`), of any task, with `count` inputs or fewer.

    They are drawn with `seed`, the same for every model.
    """
    task = task_of(name)
    if str(name).startswith(HUB) and not classifies(folder := Path(str(name)[len(HUB) :])):
        return _hub_text(folder, data, count, seed)
    if task == "language":
        return _text(Path(name), data, count, seed)
    if task == "segmentation":
        pictures = _Pictures(open_segmentation(named_data(data, "this model needs data"), "val"))
        return _images(_encoder(Path(name)), pictures, seed)
    subject = open_subject(name)
    return _images(subject, open_images(data_location(subject, data), "val"), seed)


def _images(subject: Subject, source: ImageSource, seed: int) -> Inputs:
    """Images drawn with a seed."""
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


def _encoder(run: Path) -> Subject:
    """The encoder of a segmentation run; the decoder's recursion is another one."""
    whole, info = load(run), read_model_info(run)
    model = PixelModel(whole.model.encoder, info["mean"], info["std"]).eval()
    facts = run_facts(run, fingerprint(whole), whole.model.gains)
    return _subject(run, model, facts, image_size=info["build"]["image_size"])


def _text(run: Path, data: str | Path | None, count: int, seed: int) -> Inputs:
    from pidformer.runs.model import load_language

    loaded = load_language(run)
    model = loaded.model
    subject = _subject(run, model, run_facts(run, fingerprint(model), model.gains))
    return _stretches(subject, loaded.tokenizer, loaded.length, data, count, seed)


def _hub_text(folder: Path, data: str | Path | None, count: int, seed: int) -> Inputs:
    """A text model of a type that can be converted, in a folder of Hugging Face's."""
    from pidformer.convert.hugging_face import from_pretrained, load_plain
    from pidformer.data.text import tokenizer_from

    fields = read_config(folder)
    model = (from_pretrained if "pidformer" in fields else load_plain)(folder).eval()
    definition = read_object(folder / "tokenizer.json")
    name, facts = f"{HUB}{folder}", {"weights": fingerprint(model)}
    subject = Subject(name=name, label=folder.resolve().name, model=model, facts=facts)
    tokenizer = tokenizer_from({"kind": "subwords", "definition": definition})
    return _stretches(subject, tokenizer, HUB_LENGTH, data, count, seed)


def _stretches(
    subject: Subject, tokenizer: Any, length: int, data: str | Path | None, count: int, seed: int
) -> Inputs:
    """Stretches of a text, each as long as those that the model was trained on."""
    from pidformer.data.text import open_corpus

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
    data = read_recipe(run)["data"]["name"]
    label = facts["label"]
    return Subject(
        name=str(run), label=label, model=model, data=data, folder=run, facts=facts, **more
    )
