"""Gains for a frozen model: tried on validation data, without training."""

from pidformer.tune.run import Space, Tuned, read_levels, tune

__all__ = ["Space", "Tuned", "read_levels", "tune"]
