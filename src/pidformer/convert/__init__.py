"""Models that people already have, with a controller: timm's and Hugging Face's."""

from pidformer.convert.convert import convert, revert
from pidformer.convert.ramp import GainRamp
from pidformer.convert.saved import restore, save

__all__ = ["GainRamp", "convert", "restore", "revert", "save"]
