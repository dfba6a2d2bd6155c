"""Robustness: threats as values, and accuracy under them."""

from pidformer.robustness.apgd import APGD
from pidformer.robustness.attack import Attack
from pidformer.robustness.attacks import FGSM, PGD
from pidformer.robustness.autoattack import AutoAttack
from pidformer.robustness.evaluate import accuracy_under, evaluate
from pidformer.robustness.fab import FAB
from pidformer.robustness.noise import Noise
from pidformer.robustness.normalized import Normalized
from pidformer.robustness.registry import threat_from
from pidformer.robustness.segmentation import segmentation_threats
from pidformer.robustness.sld import SLD
from pidformer.robustness.spsa import SPSA
from pidformer.robustness.square import Square
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
    "segmentation_threats",
    "threat_from",
]
