"""Threats to a model that labels every pixel: corruptions, FGSM and PGD on maps of labels."""
# B pairs

import torch
from torch import Tensor

from pidformer.data.segmentation import IGNORED
from pidformer.errors import InputError
from pidformer.robustness.attack import AttackBatch
from pidformer.robustness.attacks import FGSM, PGD
from pidformer.robustness.corruptions import CORRUPTIONS, Corruption
from pidformer.robustness.threat import Draws, Model

PixelThreat = Corruption | FGSM | PGD
UNLABELLED = -100
"""The label that torch's cross entropy leaves out."""


def threatened(
    threat: PixelThreat | None,
    model: Model,
    images: Tensor,
    masks: Tensor,
    *,
    seed: int = 0,
    indices: list[int] | None = None,
) -> Tensor:
    """What a model of pixels is shown instead of `images` (B, 3, H, W) in [0, 1].

    An attack climbs the cross entropy of the true labels summed over the labelled pixels
    (`masks` (B, H, W), 255 = none), inside the ball around the image: `model` is the whole way
    from the image to logits (B, K, H, W) at its size. What is drawn for an image depends on (seed,
    its index) alone.
    """
    numbers = torch.as_tensor(
        range(len(images)) if indices is None else indices, device=images.device
    )
    if threat is None:
        return images
    if isinstance(threat, Corruption):
        return threat.corrupt(images, seed=seed, indices=numbers)
    check_threat(threat)
    labels = masks.long().masked_fill(masks == IGNORED, UNLABELLED)
    return threat.within(model, AttackBatch(images, labels, Draws((seed,), numbers)))


def check_threat(threat: object) -> None:
    """Refuse what has no meaning for a map of labels."""
    if threat is None or isinstance(threat, Corruption | FGSM):
        return
    if not isinstance(threat, PGD):
        raise InputError(
            f"segmentation is evaluated under FGSM, PGD and Corruption, got {threat!r}"
        )
    if threat.early_stop or threat.restarts > 1:
        raise InputError(
            f"{threat!r}: early_stop and restarts ask whether an image is misclassified, which a "
            "map of labels is not; leave them at their defaults"
        )


def segmentation_threats(severity: int = 3) -> dict[str, PixelThreat | None]:
    """The rows of a table: clean, the 15 corruptions at one severity, and the paper's PGD."""
    pgd = PGD(step_size=0.15 / 255)
    corruptions = [Corruption(name=name, severity=severity) for name in CORRUPTIONS]
    return {row_name(threat): threat for threat in (None, *corruptions, pgd)}


def row_name(threat: PixelThreat | None) -> str:
    """What the row of a threat is called where it has no other name."""
    if threat is None:
        return "clean"
    if isinstance(threat, Corruption):
        return f"corruption/{threat.name}/{threat.severity}"
    return type(threat).__name__.lower()
