"""Transformers with a PID feedback controller in their attention."""

import importlib
from typing import Any

from pidformer import analysis, control, nn, robustness
from pidformer.control import PIDController, PIDGains, PIDState
from pidformer.convert import convert, revert
from pidformer.errors import InputError
from pidformer.models import PIDVisionTransformer, PixelModel
from pidformer.nn import LearnedGains, PIDAttention, PIDBlock, scan_blocks
from pidformer.ops import pid_attention
from pidformer.runs.model import load

_LANGUAGE = {
    "PIDformerConfig": "pidformer.models.causal_lm",
    "PIDformerForCausalLM": "pidformer.models.causal_lm",
    "from_pretrained": "pidformer.convert.hugging_face",
}


def __getattr__(name: str) -> Any:
    """What needs transformers: imported when it is asked for."""
    if name not in _LANGUAGE:
        raise AttributeError(f"module 'pidformer' has no attribute {name!r}")
    try:
        module = importlib.import_module(_LANGUAGE[name])
    except ImportError as error:
        raise ImportError(f"pf.{name} needs transformers: pip install 'pidformer[lm]'") from error
    return getattr(module, name)


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
    "convert",
    "load",
    "nn",
    "pid_attention",
    "revert",
    "robustness",
    "scan_blocks",
]
