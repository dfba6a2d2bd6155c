"""Robustness: threats as values, and accuracy under them."""

from pidformer.robustness.attack import Attack
from pidformer.robustness.attacks import FGSM, PGD, SLD, Noise, Normalized
from pidformer.robustness.autoattack import APGD, FAB, AutoAttack
from pidformer.robustness.black_box import SPSA, Square
from pidformer.robustness.evaluate import accuracy_under, evaluate
from pidformer.robustness.recording import recorded
from pidformer.robustness.registry import threat_from
from pidformer.robustness.segmentation import segmentation_threats
from pidformer.robustness.threat import Model, Threat

__all__ = [
    "APGD",
    "FAB",
    "FGSM",
    "PGD",
    "SLD",
    "SPSA",
    "Attack",
    "AutoAttack",
    "Model",
    "Noise",
    "Normalized",
    "Square",
    "Threat",
    "accuracy_under",
    "evaluate",
    "recorded",
    "segmentation_threats",
    "threat_from",
]
