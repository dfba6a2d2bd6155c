"""The Attack view as functions: one image, one attack, each model on its own."""
# C channels, L layers

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from pidformer.analysis import token_similarity
from pidformer.data.pictures import fit_for_evaluation, pixels
from pidformer.errors import InputError, check_known
from pidformer.lab.knobs import TwoModels, check_sliders
from pidformer.lab.pictures import DIGITS, HANDFUL, LabelledPicture
from pidformer.report.panels import png_uri
from pidformer.robustness import Attack, threat_from
from pidformer.robustness.threat import pixel_text
from pidformer.runs.open import Subject

ATTACKS = ("fgsm", "pgd", "apgd", "spsa", "noise")
"""Those whose budget is the largest change of a pixel, or its spread."""
LADDER = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class AttackKnobs(TwoModels):
    images: str = ""
    """The set that the image is of; empty for the one that the lab opens on."""
    number: int = 0
    attack: str = "pgd"
    strength: int = 16
    """Budget in 1/255."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_known("attack", self.attack, ATTACKS)
        check_sliders(self, "attack")
        if not 0 <= self.number < HANDFUL:
            raise InputError(f"number must be 0 to {HANDFUL - 1}, got {self.number}")

    @property
    def threat(self) -> Attack:
        """The attack with this budget, as `evaluate --curve` makes it."""
        return threat_from(self.attack, eps=self.strength / 255)

    def command(self, names: Sequence[str], folder: str | Path) -> str:
        """The same attack on all validation images at `folder`."""
        return (
            f"pidformer evaluate {shlex.join(names)} --curve {self.attack} "
            f"--eps {self.strength}:{self.strength}:1 --data {shlex.quote(str(folder))}"
        )

    def python(self, name: str, folder: str | Path | None) -> str:
        """The same attack on the same image, of the set at `folder` or else an upload."""
        if folder is None:
            image = 'Image.open("mine.png").convert("RGB")'
            take = "from PIL import Image\n", f"LabelledPicture({image})"
        else:
            images = self.images or DIGITS
            where = "" if images == DIGITS else f"{images!r}: {str(folder)!r}"
            take = "", f"PictureSets({{{where}}}).picture({images!r}, {self.number})"
        return (
            f"{take[0]}from pidformer.lab.attack import AttackKnobs, attack\n"
            "from pidformer.lab.pictures import LabelledPicture, PictureSets\n"
            "from pidformer.runs.open import open_subject\n\n"
            f"subject = open_subject({name!r})\n"
            f"picture = {take[1]}\n"
            f"knobs = AttackKnobs(attack={self.attack!r}, strength={self.strength}, "
            f"seed={self.seed})\n"
            "print(attack(subject, picture, knobs).verdict)\n"
        )


class Answer(NamedTuple):
    """What a model makes of an image."""

    image: Tensor
    """(C, H, W) in [0, 1], as the model sees it."""
    chances: list[float]
    similarity: list[float]
    """Token similarity by layer; empty if the model has no tokens to look at."""

    @property
    def best(self) -> int:
        return self.chances.index(max(self.chances))


@dataclass(frozen=True, kw_only=True)
class Attacked:
    label: str
    classes: tuple[str, ...]
    truth: int
    before: Answer
    after: Answer
    is_controlled: bool
    is_known: bool = True
    """Whether `truth` is the image's class, or what the model said of it before."""

    @property
    def mark(self) -> str:
        return " (true)" if self.is_known else " (before)"

    @property
    def change(self) -> Tensor:
        return self.after.image - self.before.image

    @property
    def is_held(self) -> bool:
        """Whether the model says after the attack what is true."""
        return self.after.best == self.truth

    @property
    def verdict(self) -> str:
        before, after = self.before, self.after
        largest = pixel_text(round(255 * float(self.change.abs().max())) / 255)
        if before.best != self.truth:
            text = f"took it for {self.classes[before.best]} even before"
        elif after.best == before.best:
            text = f"still says {self.classes[after.best]}"
        else:
            text = f"now says {self.classes[after.best]}"
        return (
            f"{self.label} {text}: {self.classes[self.truth]} falls from "
            f"{before.chances[self.truth]:.1%} to {after.chances[self.truth]:.1%}; no pixel "
            f"changed by more than {largest}."
        )

    def pictures(self, factor: float) -> list[tuple[str, str]]:
        """The image, its change times `factor` and the result, each with its words."""
        before, after, truth = self.before, self.after, self.truth
        shown = (
            (before.image, f"original: {self.classes[truth]}, {before.chances[truth]:.0%}"),
            (0.5 + factor * self.change, f"perturbation, {factor:g} times as large"),
            (after.image, f"result: {self.classes[after.best]}, {max(after.chances):.0%}"),
        )
        return [(png_uri(pixels), text) for pixels, text in shown]

    def likeliest(self, most: int = 5) -> list[int]:
        """The likeliest classes, before or after, by their numbers."""
        larger = [*map(max, self.before.chances, self.after.chances)]
        return sorted(sorted(range(len(larger)), key=lambda k: -larger[k])[:most])


def attack(subject: Subject, picture: LabelledPicture, knobs: AttackKnobs) -> Attacked:
    """Attack one model on one picture; if its class is not known, what the model says counts."""
    image, truth = as_input(subject, picture.image), picture.truth(subject.classes)
    before = _answer(subject, image)
    if not all(map(math.isfinite, before.chances)):
        raise InputError(f"{subject.label} gives no finite probabilities for this picture")
    label = before.best if truth is None else truth
    attacked = image
    if knobs.strength > 0:
        attacked = knobs.threat(subject.model, image, torch.tensor([label]), seed=knobs.seed)
    return Attacked(
        label=subject.label,
        classes=tuple(subject.classes or map(str, range(len(before.chances)))),
        truth=label,
        before=before,
        after=_answer(subject, attacked.detach()),
        is_controlled=subject.facts.get("gains") is not None,
        is_known=truth is not None,
    )


def _answer(subject: Subject, image: Tensor) -> Answer:
    with torch.no_grad():
        chances = subject.model(image).float().softmax(-1)[0]
    try:
        similarity = [float(value) for value in token_similarity(subject.model, image)]
    except InputError:  # no transformer, or one token
        similarity = []
    return Answer(image[0], chances.tolist(), similarity)


def as_input(subject: Subject, picture: Image.Image) -> Tensor:
    """A picture as the model was evaluated with: (1, C, H, W) in [0, 1]."""
    channels = 3 if subject.scale is None else len(subject.scale[0])
    size = subject.image_size or min(picture.size)
    fitted = fit_for_evaluation(picture, size, subject.crop_ratio)
    shown = fitted.convert("L" if channels == 1 else "RGB")
    return torch.from_numpy(pixels(shown))[None].float() / 255


def opening(
    subjects: Sequence[Subject], pictures: Iterable[LabelledPicture], knobs: AttackKnobs
) -> AttackKnobs:
    """The first picture that an attack turns, at the least strength of LADDER; else `knobs`."""
    for number, picture in enumerate(pictures):
        for strength in (0, *LADDER):
            tried = replace(knobs, number=number, strength=strength)
            is_held = [attack(subject, picture, tried).is_held for subject in subjects]
            if not all(is_held):
                break
        if strength and not all(is_held):
            return tried
    return knobs


def amplification(found: Sequence[Attacked]) -> float:
    """One factor for all, so that the largest change fills the grey scale: a power of two."""
    largest = max(float(each.change.abs().max()) for each in found)
    return 2.0 ** math.floor(math.log2(0.5 / largest)) if largest > 0 else 1.0
