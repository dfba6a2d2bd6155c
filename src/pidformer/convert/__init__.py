"""Models that people already have, with a controller: timm's and Hugging Face's."""

from pidformer.convert.convert import convert, revert

__all__ = ["convert", "revert"]
