"""Robustness: threats as values, and accuracy under them."""

from pidformer.robustness.accuracy import accuracy_under
from pidformer.robustness.attacks import FGSM, PGD
from pidformer.robustness.threat import Model, Threat

__all__ = ["FGSM", "PGD", "Model", "Threat", "accuracy_under"]
