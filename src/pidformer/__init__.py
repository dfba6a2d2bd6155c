"""Transformers with a PID feedback controller in their attention."""

from importlib.metadata import version

from pidformer import control
from pidformer.control import PIDController, PIDGains, PIDState
from pidformer.errors import InputError
from pidformer.models import PIDVisionTransformer, PixelModel
from pidformer.nn import LearnedGains, PIDAttention, PIDBlock, scan_blocks
from pidformer.ops import pid_attention

__version__ = version("pidformer")

__all__ = [
    "InputError",
    "LearnedGains",
    "PIDAttention",
    "PIDBlock",
    "PIDController",
    "PIDGains",
    "PIDState",
    "PIDVisionTransformer",
    "PixelModel",
    "__version__",
    "control",
    "pid_attention",
    "scan_blocks",
]
