"""What training does to its images, as values."""

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

from pidformer.data.arguments import as_interval, check_counts, check_share
from pidformer.errors import InputError, shortened, unknown

Crop = Literal["none", "resized", "padded"]

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
        if self.crop not in get_args(Crop):
            raise unknown("crop", self.crop, get_args(Crop))
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
