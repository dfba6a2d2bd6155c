"""The corruptions of ImageNet-C, batched, on the images' device."""

from pidformer.robustness.corruptions.corruption import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SAVE_AS_JPEG85,
    SEVERITIES,
    Corruption,
)
from pidformer.robustness.corruptions.scores import ALEXNET_ERROR, mce, mean_corruption_error

__all__ = [
    "ALEXNET_ERROR",
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "SAVE_AS_JPEG85",
    "SEVERITIES",
    "Corruption",
    "mce",
    "mean_corruption_error",
]
