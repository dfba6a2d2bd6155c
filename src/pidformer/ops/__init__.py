"""The operator, as fast as the device allows."""

from pidformer.ops.attention import pid_attention
from pidformer.ops.dispatch import kernels

__all__ = ["kernels", "pid_attention"]
