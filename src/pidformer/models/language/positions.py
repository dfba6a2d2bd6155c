"""Where a token stands: sinusoids added to the embedding, or a rotation of queries and keys."""
# B batch, N tokens, C width, D head dim

import torch
import torch.nn.functional as F
from torch import Tensor

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, each (B, 1, N, D)."""


def token_positions(attention_mask: Tensor | None, past: int | Tensor, like: Tensor) -> Tensor:
    """Positions counted from the first real token, int64 (B or 1, N), for tokens `like` (B, N).

    `attention_mask` (B, past + N) is 0 at padding; padding gets position 0. So a batch padded on
    the left gives each row the positions it has alone.
    """
    count = like.shape[1]
    if attention_mask is None or attention_mask.ndim != 2:
        return (torch.arange(count, device=like.device) + past)[None]
    positions = attention_mask.long().cumsum(-1) - 1
    return positions.clamp(min=0)[:, -count:]


def packed_documents(positions: Tensor) -> Tensor | None:
    """The number of each token's document (B or 1, N): a new one where positions do not rise.

    None where every row is one document. Positions that skip tokens stay in their document. A
    compiler cannot ask, and gets the numbers always.
    """
    restarts = positions.diff(dim=-1) <= 0
    if not torch.compiler.is_compiling() and not bool(restarts.any()):
        return None
    return F.pad(restarts.long().cumsum(-1), (1, 0))


def counted_down(positions: Tensor, documents: Tensor | None = None) -> Tensor:
    """The same positions counted from the last token: T-1, ..., 1, 0 for 0, 1, ..., T-1.

    Of packed documents, each from its own last token.
    """
    if documents is None:
        return positions.amax(-1, keepdim=True) - positions
    last = torch.zeros_like(positions).scatter_reduce(-1, documents, positions, "amax")
    return last.gather(-1, documents) - positions


def sinusoids(positions: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """[sin(t w_0), ..., sin(t w_{C/2-1}), cos(t w_0), ...] with w_k = base^(-2k/C), (B, N, C)."""
    angles = _angles(positions, width, base)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def rotation(positions: Tensor, head_dim: int, base: float) -> Rotation:
    """Rotary positions: the pair (x_k, x_{k+D/2}) turns by the angle t base^(-2k/D), float32."""
    angles = _angles(positions, head_dim, base)[:, None]
    angles = torch.cat([angles, angles], dim=-1)  # (B, 1, N, D)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, by: Rotation) -> Tensor:
    """Queries or keys (B, H, N, D), turned in float32 and rounded once."""
    cos, sin = by
    first, second = x.chunk(2, dim=-1)
    if x.requires_grad or torch.compiler.is_compiling():
        return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)
    # In place: tensors of this size are read or written five times, not ten.
    turned = x * cos
    for part, other, sign in zip(turned.chunk(2, dim=-1), (second, first), (-1, 1), strict=True):
        part.addcmul_(other, sin[..., : other.shape[-1]], value=sign)  # both halves turn alike
    return turned.to(x.dtype)


def _angles(positions: Tensor, width: int, base: float) -> Tensor:
    powers = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    return positions[..., None].float() * base**-powers
