"""Modules: attention and block with a controller, and the loop over depth."""

from pidformer.nn.attention import PIDAttention
from pidformer.nn.block import PIDBlock
from pidformer.nn.depth import Observer, evaluating, scan_blocks
from pidformer.nn.gains import LearnedGains, acting_gains, controlled_attention, set_gain_share
from pidformer.nn.scale import ControlMeter, ControlScale, has_control

__all__ = [
    "ControlMeter",
    "ControlScale",
    "LearnedGains",
    "Observer",
    "PIDAttention",
    "PIDBlock",
    "acting_gains",
    "controlled_attention",
    "evaluating",
    "has_control",
    "scan_blocks",
    "set_gain_share",
]
