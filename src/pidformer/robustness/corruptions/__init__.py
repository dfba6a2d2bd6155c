"""The corruptions of ImageNet-C, batched, on the images' device."""

from pidformer.robustness.corruptions.corruption import (
    ALEXNET_ERROR,
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SAVE_AS_JPEG85,
    SEVERITIES,
    Corruption,
    corrupt,
    mce,
    mean_corruption_error,
)

__all__ = [
    "ALEXNET_ERROR",
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "SAVE_AS_JPEG85",
    "SEVERITIES",
    "Corruption",
    "corrupt",
    "mce",
    "mean_corruption_error",
]
