"""SAM's vision transformer with a controller, as timm has it (`VisionTransformerSAM`, ViTDet's).

Tokens keep their places on a grid, and most layers attend within windows of it, padded to one
size. The control of a token reads that token alone, whatever its window, so the state is that of
the grid: values and attention's output leave their windows, padding falls away, the control is
added, and the sum goes back into windows, where the model projects and drops.
"""
# B images, Y rows, X columns, N = Y X tokens, C width, H heads, D head dim

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from timm.layers import apply_rot_embed_cat, resample_abs_pos_embed_nhwc
from timm.models.vision_transformer_sam import (
    get_decomposed_rel_pos_bias,
    window_partition,
    window_unpartition,
)
from torch import Tensor

from pidformer.control.pid import PIDState
from pidformer.convert.controlled import Carried, Controlled, ControlledModel, projected
from pidformer.convert.conversion import shown_gains
from pidformer.errors import check_known
from pidformer.nn.attention import seen_values
from pidformer.nn.gains import acting_gains
from pidformer.ops.attention import feed_back


class GridWindows:
    """A grid (Y, X) cut into squares of `side`, padded with zeros; side 0: one window, the grid."""

    def __init__(self, grid: tuple[int, int], side: int) -> None:
        self.grid, self.side = grid, side
        self.padded = tuple(-(-length // side) * side for length in grid) if side else grid
        self.shape = (side, side) if side else grid

    def cut(self, x: Tensor) -> Tensor:
        """(B, Y, X, C) to windows (B W, y, x, C)."""
        return window_partition(x, self.side)[0] if self.side else x

    def joined(self, windows: Tensor) -> Tensor:
        """Undoes `cut`."""
        if not self.side:
            return windows
        return window_unpartition(windows, self.side, self.grid, self.padded)

    def heads_cut(self, heads: Tensor) -> Tensor:
        """(B, H, N, D) of the grid to windows (B W, y, x, H D)."""
        return self.cut(heads.transpose(1, 2).flatten(2).unflatten(1, self.grid))

    def heads_joined(self, heads: Tensor) -> Tensor:
        """(B W, H, y x, D) of windows to those of the grid, (B, H, N, D)."""
        tokens = self.joined(heads.transpose(1, 2).flatten(2).unflatten(1, self.shape))
        return tokens.flatten(1, 2).unflatten(-1, (heads.shape[1], -1)).transpose(1, 2)


class ControlledSAMAttention(Controlled):
    """SAM's attention, plus the control: a grid (B, Y, X, C) to windows (B W, y, x, C)."""

    def forward(self: Any, x: Tensor, state: PIDState | None, windows: GridWindows) -> Carried:
        q, k, v = projected(self, windows.cut(x).flatten(1, 2))
        value = windows.heads_joined(v)
        seen = seen_values(self, value, state)
        if seen is not value:
            # What pads a window has no value in the first layer, and keeps its own.
            change = windows.heads_cut(seen - value).flatten(1, 2)
            v = v + change.unflatten(-1, (v.shape[1], -1)).transpose(1, 2)
        attended = self._attended(q, k, v, windows.shape)
        gains = acting_gains(self)
        out, state = feed_back(
            windows.heads_joined(attended), value, state, gains, self.first_layer
        )
        return self.proj_drop(self.proj(windows.heads_cut(out))), state

    def _attended(self: Any, q: Tensor, k: Tensor, v: Tensor, shape: tuple[int, int]) -> Tensor:
        """softmax(q k^T / sqrt(D) + bias) v, without the control; three axes, as timm has them."""
        q, k, v = (part.flatten(0, 1) for part in (self.q_norm(q), self.k_norm(k), v))
        bias = None
        if self.use_rel_pos:
            bias = get_decomposed_rel_pos_bias(q, self.rel_pos_h, self.rel_pos_w, shape, shape)
        elif self.rope is not None:
            rope = self.rope.get_embed()
            q, k = (apply_rot_embed_cat(part, rope).type_as(v) for part in (q, k))
        if self.fused_attn:
            drop = self.attn_drop.p if self.training else 0.0
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=drop)
        else:
            scores = q * self.scale @ k.mT
            scores = scores if bias is None else scores + bias
            out = self.attn_drop(scores.softmax(-1)) @ v
        return out.unflatten(0, (-1, self.num_heads))

    def extra_repr(self) -> str:
        return shown_gains(self)


class ControlledSAMBlock(Controlled):
    """One of SAM's blocks as `x, state = block(x, state)`, x (B, Y, X, C)."""

    def forward(self: Any, x: Tensor, state: PIDState | None = None) -> Carried:
        windows = GridWindows((x.shape[1], x.shape[2]), self.window_size)
        mixed, state = self.attn(self.norm1(x), state, windows)
        x = x + windows.joined(self.drop_path1(self.ls1(mixed)))
        tokens = x.flatten(1, 2)
        tokens = tokens + self.drop_path2(self.ls2(self.mlp(self.norm2(tokens))))
        return self.out(tokens.view(x.shape)), state


class ControlledSAM(ControlledModel):
    """SAM's vision transformer; its neck takes the place of the last norm."""

    def embed(self: Any, x: Tensor) -> Tensor:
        """Images (B, 3, height, width) to the tokens that the first block takes, (B, Y, X, C)."""
        tokens = self.patch_embed(x)
        if self.pos_embed is not None:
            tokens = tokens + resample_abs_pos_embed_nhwc(self.pos_embed, tokens.shape[1:3])
        return self.norm_pre(self.patch_drop(self.pos_drop(tokens)))

    def forward_features(self: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.neck(self._scan(x, self.blocks).permute(0, 3, 1, 2))

    def forward_intermediates(  # type: ignore[override]
        self: Any,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Outputs of some blocks, with timm's options and timm's return values."""
        check_known("output_fmt", output_fmt, ("NCHW",))
        x, taken = self._scan_taking(x, indices, stop_early)
        planes = [tokens.permute(0, 3, 1, 2) for tokens in taken]
        planes = [self.neck(plane) for plane in planes] if norm else planes
        return planes if intermediates_only else (self.neck(x.permute(0, 3, 1, 2)), planes)
