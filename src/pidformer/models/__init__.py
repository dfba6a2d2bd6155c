"""Models. Importing this package adds the `pid_deit_*` names to timm's registry."""

from pidformer.control.gains import as_gains
from pidformer.models import pid_deit as pid_deit
from pidformer.models.gains import GainsLike, ModelGains, layer_gains, resolve_gains
from pidformer.models.pixel import PixelModel
from pidformer.models.segmenter import Segmenter
from pidformer.models.sliding import Sliding, View
from pidformer.models.vit import PIDVisionTransformer

__all__ = [
    "GainsLike",
    "ModelGains",
    "PIDVisionTransformer",
    "PixelModel",
    "Segmenter",
    "Sliding",
    "View",
    "as_gains",
    "layer_gains",
    "resolve_gains",
]
