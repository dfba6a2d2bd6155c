"""Transformers with a PID feedback controller in their attention."""

from pidformer import analysis, control, robustness
from pidformer.checkpoint import load
from pidformer.control import PIDController, PIDGains, PIDState
from pidformer.errors import InputError
from pidformer.models import PIDVisionTransformer, PixelModel
from pidformer.nn import LearnedGains, PIDAttention, PIDBlock, scan_blocks
from pidformer.ops import pid_attention

__version__ = "0.1.0"

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
    "analysis",
    "control",
    "load",
    "pid_attention",
    "robustness",
    "scan_blocks",
]
