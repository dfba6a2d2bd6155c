"""From error rates under corruption to one number."""

from collections.abc import Mapping, Sequence

from pidformer.errors import InputError, unknown
from pidformer.robustness.corruptions.corruption import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES

ALEXNET_ERROR = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
"""AlexNet's error on ImageNet-C, the mean over the severities, as published with the set."""


def mean_corruption_error(errors: Mapping[str, Sequence[float]]) -> float:
    """The mean error rate, in [0, 1], over these corruptions and their five severities.

    `errors[name]` are the error rates at severities 1 to 5. Not normalised: the number for images
    that have no AlexNet constants (64 and 32 pixels). It is not the published mCE; see `mce`.
    """
    if not errors:
        raise InputError("there are no errors to average; give {corruption: five error rates}")
    means = [_mean(name, rates) for name, rates in errors.items()]
    return sum(means) / len(means)


def mce(errors: Mapping[str, Sequence[float]]) -> float:
    """mCE of ImageNet-C in per cent: 100 * mean over the 15 of sum_s E(s) / sum_s E_AlexNet(s).

    For ImageNet at 224 pixels only. The extra corruptions do not count and may be absent.
    """
    missing = [name for name in CORRUPTIONS if name not in errors]
    if missing:
        raise InputError(
            f"mCE is over all 15 corruptions, {', '.join(missing)} missing; "
            "mean_corruption_error takes any"
        )
    ratios = [_mean(name, errors[name]) / ALEXNET_ERROR[name] for name in CORRUPTIONS]
    return 100 * sum(ratios) / len(ratios)


def _mean(name: str, rates: Sequence[float]) -> float:
    known = CORRUPTIONS + EXTRA_CORRUPTIONS
    if name not in known:
        raise unknown("corruption", name, known)
    if len(rates) != len(SEVERITIES):
        raise InputError(f"{name} needs the error rates of 5 severities, got {len(rates)}")
    if not all(0 <= rate <= 1 for rate in rates):
        raise InputError(f"error rates must be in [0, 1], got {list(rates)} for {name}")
    return sum(rates) / len(rates)
