"""Transformers with a PID feedback controller in their attention."""

from typing import Any

from pidformer import analysis, control, robustness
from pidformer.checkpoint import load
from pidformer.control import PIDController, PIDGains, PIDState
from pidformer.errors import InputError
from pidformer.models import PIDVisionTransformer, PixelModel
from pidformer.nn import LearnedGains, PIDAttention, PIDBlock, scan_blocks
from pidformer.ops import pid_attention

_LANGUAGE = ("PIDformerConfig", "PIDformerForCausalLM")


def __getattr__(name: str) -> Any:
    """The language model, which needs transformers: imported when it is asked for."""
    if name not in _LANGUAGE:
        raise AttributeError(f"module 'pidformer' has no attribute {name!r}")
    try:
        from pidformer.models import causal_lm
    except ImportError as error:
        raise ImportError(f"pf.{name} needs transformers: pip install 'pidformer[lm]'") from error
    return getattr(causal_lm, name)


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
