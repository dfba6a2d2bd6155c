"""Mixup and CutMix between neighbours, and the soft targets that go with them."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pidformer.data.augment import Augment


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
