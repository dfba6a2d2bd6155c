"""The operator, as fast as the device allows."""

from pidformer.ops.attention import pid_attention

__all__ = ["pid_attention"]
