"""Gains for a frozen model: tried on validation data, without training."""

from pidformer.tune.run import Tuned, tune
from pidformer.tune.search import Space, read_levels

__all__ = ["Space", "Tuned", "read_levels", "tune"]
