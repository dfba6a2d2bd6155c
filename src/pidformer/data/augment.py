"""What training does to its images: a value, timm's pipeline for streamed images, and mixing."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from PIL import Image
from timm.data.auto_augment import RandAugment, posterize, rand_augment_transform
from timm.data.transforms import RandomResizedCropAndInterpolation
from torch import Tensor
from torchvision import transforms

from pidformer.data.arguments import as_interval, check_counts, check_share
from pidformer.data.pictures import fit
from pidformer.errors import InputError, check_known, shortened

Crop = Literal["none", "resized", "padded"]
Transform = Callable[[Image.Image], Image.Image]

_RAND_AUGMENT = re.compile(
    r"rand(-(m\d+|n\d+|p(0?\.\d+|[01])|mstd\d+(\.\d+)?|mmax\d+|inc[01]|t(weights|3a|3aw)))*"
)


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Augmentation of a training batch; the defaults crop and flip, and mix nothing.

    The same value means the same distribution whether the images are resident on the device or
    streamed through workers (see `TrainImages`).

    >>> Augment(crop="padded", mixup=0.8).is_mixing
    True
    """

    crop: Crop = "resized"
    """"resized": a random box resized to the image size; "padded": a random window of the image
    with a black border of `padding` pixels; "none": the image as it is."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Area of the random box, as a share of the image ("resized")."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Width over height of the random box ("resized")."""
    padding: int = 4
    """Border in pixels ("padded")."""
    flip: float = 0.5
    """Probability of a left-right flip."""
    rand_augment: str | None = None
    """timm's RandAugment, as "rand-m9-mstd0.5-inc1"; images are then streamed."""
    erase: float = 0.0
    """Probability that one random box is filled with noise."""
    mixup: float = 0.0
    """alpha of Mixup's lambda ~ Beta(alpha, alpha); 0 is off."""
    cutmix: float = 0.0
    """alpha of CutMix's lambda ~ Beta(alpha, alpha); 0 is off."""
    mix_prob: float = 1.0
    """Probability that a batch is mixed."""
    switch_prob: float = 0.5
    """Probability of CutMix instead of Mixup when both are on."""
    label_smoothing: float = 0.0
    """Share of each target spread evenly over all classes."""
    repeats: int = 1
    """Copies of an image in a batch, each augmented by itself (repeated augmentation)."""

    def __post_init__(self) -> None:
        check_known("crop", self.crop, get_args(Crop))
        object.__setattr__(self, "scale", as_interval("scale", self.scale, 1.0))
        object.__setattr__(self, "ratio", as_interval("ratio", self.ratio))
        for name in ("flip", "erase", "mix_prob", "switch_prob", "label_smoothing"):
            check_share(name, getattr(self, name))
        for name in ("mixup", "cutmix"):
            check_share(name, getattr(self, name), math.inf)
        if self.label_smoothing == 1.0:
            raise InputError("label_smoothing must be below 1, got 1; DeiT uses 0.1")
        check_counts(padding=self.padding, repeats=self.repeats)
        text = self.rand_augment
        if text is not None and not (isinstance(text, str) and _RAND_AUGMENT.fullmatch(text)):
            raise InputError(
                f"rand_augment must be a RandAugment string of timm, got {shortened(text)}; "
                "DeiT uses 'rand-m9-mstd0.5-inc1'"
            )

    @property
    def is_mixing(self) -> bool:
        """Whether images of a batch are mixed in pairs."""
        return self.mix_prob > 0 and (self.mixup > 0 or self.cutmix > 0)

    @property
    def has_soft_targets(self) -> bool:
        """Whether targets are (B, K) probabilities instead of (B,) labels."""
        return self.is_mixing or self.label_smoothing > 0


def train_transform(augment: Augment, image_size: int, mean: tuple[float, ...]) -> Transform:
    """timm's training pipeline up to, and without, the conversion to a tensor.

    Crop (bicubic), flip, RandAugment filling with the mean colour: the list that
    `timm.data.create_transform(is_training=True)` builds, in its order. Erasing and mixing follow
    in batches on the device.
    """
    steps: list[Callable[[Any], Any]] = []
    if augment.crop == "resized":
        steps.append(
            RandomResizedCropAndInterpolation(
                image_size, scale=augment.scale, ratio=augment.ratio, interpolation="bicubic"
            )
        )
    else:
        steps.append(partial(fit, height=image_size, width=image_size))
    if augment.crop == "padded":
        steps.append(transforms.RandomCrop(image_size, padding=augment.padding))
    if augment.flip > 0:
        steps.append(transforms.RandomHorizontalFlip(augment.flip))
    if augment.rand_augment is not None:
        levels = tuple(min(255, round(255 * value)) for value in mean)
        options = {
            "translate_const": int(image_size * 0.45),
            "img_mean": levels if len(levels) == 3 else levels[0],
            "interpolation": Image.Resampling.BICUBIC,
        }
        steps.append(_with_all_bits(rand_augment_transform(augment.rand_augment, options)))
    return transforms.Compose(steps)


def _with_all_bits(rand_augment: RandAugment) -> RandAugment:
    """Let Posterize keep no bit at all, as "inc1" asks at full magnitude and Pillow refuses."""
    for op in rand_augment.ops:
        if op.aug_fn is posterize:
            op.aug_fn = _posterize
    return rand_augment


def _posterize(image: Image.Image, bits: int, **options: Any) -> Image.Image:
    if bits < 1:
        return Image.new(image.mode, image.size)
    return posterize(image, bits, **options)


class Mix(NamedTuple):
    """How a whole global batch is mixed: one share, and one box for CutMix (None is Mixup)."""

    share: float  # of the image itself; its neighbour has the rest
    box: tuple[int, int, int, int] | None  # top, bottom, left, right


def draw_mix(rng: np.random.Generator, augment: Augment, height: int, width: int) -> Mix:
    """timm's "batch" mode: share ~ Beta(alpha, alpha), CutMix's corrected to the clipped box."""
    if not augment.is_mixing or rng.random() >= augment.mix_prob:
        return Mix(1.0, None)
    both = augment.mixup > 0 and augment.cutmix > 0
    if augment.cutmix == 0 or (both and rng.random() >= augment.switch_prob):
        return Mix(float(rng.beta(augment.mixup, augment.mixup)), None)
    y, x = int(rng.integers(height)), int(rng.integers(width))
    side = np.sqrt(1 - rng.beta(augment.cutmix, augment.cutmix))
    h, w = int(height * side), int(width * side)
    top, bottom = max(y - h // 2, 0), min(y + (h + 1) // 2, height)
    left, right = max(x - w // 2, 0), min(x + (w + 1) // 2, width)
    share = 1 - (bottom - top) * (right - left) / (height * width)
    return Mix(share, (top, bottom, left, right))


def mix_images(images: Tensor, mix: Mix) -> Tensor:
    """Mix each image (B, C, H, W) with its neighbour, 2k with 2k + 1.

    timm mixes image j with image B - 1 - j. The batch is a random permutation, so a neighbour is
    just as random a partner, and it stays in the same process however the batch is split.
    """
    if mix.share == 1.0:
        return images
    if mix.box is None:
        return (images * mix.share).add_(_neighbours(images), alpha=1 - mix.share)
    top, bottom, left, right = mix.box
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = _neighbours(images[:, :, top:bottom, left:right])
    return mixed


def soft_targets(labels: Tensor, num_classes: int, mix: Mix, smoothing: float) -> Tensor:
    """Targets (B, K): `mix.share` of the own class, the rest of the neighbour's, smoothed.

    Smoothing s puts s / K on every class and 1 - s + s / K on the right one, as timm does.
    """
    off = smoothing / num_classes
    targets = torch.full((len(labels), num_classes), off, device=labels.device)
    targets.scatter_(1, labels[:, None], 1 - smoothing + off)
    if mix.share == 1.0:
        return targets
    return (targets * mix.share).add_(_neighbours(targets), alpha=1 - mix.share)


def _neighbours(batch: Tensor) -> Tensor:
    return batch.reshape(-1, 2, *batch.shape[1:]).flip(1).flatten(0, 1)
