"""Modules: attention and block with a controller, and the loop over depth."""

from pidformer.nn.attention import PIDAttention
from pidformer.nn.block import PIDBlock
from pidformer.nn.depth import Observer, scan_blocks
from pidformer.nn.gains import (
    LearnedGains,
    acting_gains,
    controlled_attention,
    set_gain_share,
)
from pidformer.nn.mode import evaluating

__all__ = [
    "LearnedGains",
    "Observer",
    "PIDAttention",
    "PIDBlock",
    "acting_gains",
    "controlled_attention",
    "evaluating",
    "scan_blocks",
    "set_gain_share",
]
