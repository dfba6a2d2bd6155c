"""Models that people already have, with a controller: timm's and Hugging Face's."""

from pidformer.convert.convert import convert, revert
from pidformer.convert.ramp import GainRamp

__all__ = ["GainRamp", "convert", "revert"]
