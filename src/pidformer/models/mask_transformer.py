"""Segmenter's decoders: patch tokens to scores of classes on the grid of patches."""
# B images, N patches, K classes, C width

from typing import NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from pidformer.control.gains import PIDGains
from pidformer.control.pid import FirstLayer
from pidformer.nn.block import PIDBlock
from pidformer.nn.depth import scan_blocks
from pidformer.nn.gains import LearnedGains, learned_gains


class DecodedTokens(NamedTuple):
    """The two kinds of tokens of a mask transformer."""

    patches: Tensor  # (B, N, C)
    classes: Tensor  # (B, K, C)


class LinearDecoder(nn.Module):
    """score = W patch + b."""

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.head = nn.Linear(dim, num_classes)
        _init_linear(self)

    def forward(self, patches: Tensor) -> Tensor:
        """(B, N, C) to (B, N, K)."""
        return self.head(patches)


class MaskTransformer(nn.Module):
    """Class tokens z_1 ... z_K beside the patches x, mixed by `depth` controlled blocks, then

        masks = LayerNorm_K( normalise(W_x x) . normalise(W_z z)^T )

    The classes stand after the patches. The decoder has a reference of its own: its first block
    sets v_0 of patches and classes (`state=None`), so with two blocks only the second is
    controlled; nothing of the encoder's state is used.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        num_heads: int,
        gains: PIDGains | None = None,
        *,
        depth: int = 2,
        dropout: float = 0.1,
        learn_gains: bool = False,
        first_layer: FirstLayer = "free",
    ) -> None:
        super().__init__()

        def controller(layer: int) -> PIDGains | LearnedGains | None:
            acts = layer > 0 or first_layer == "controlled"
            if learn_gains and acts and gains is not None and gains.kind != "softmax":
                return learned_gains(gains, num_heads)
            return gains

        self.gains = gains
        self.num_classes = num_classes
        self.grad_checkpointing = False
        self.proj = nn.Linear(dim, dim)
        self.class_tokens = nn.Parameter(torch.empty(1, num_classes, dim))
        self.blocks = nn.ModuleList(
            PIDBlock(
                dim,
                num_heads,
                controller(layer),
                attn_drop=dropout,
                proj_drop=dropout,
                first_layer=first_layer,
            )
            for layer in range(depth)
        )
        self.norm = nn.LayerNorm(dim)
        self.proj_patches = nn.Linear(dim, dim, bias=False)
        self.proj_classes = nn.Linear(dim, dim, bias=False)
        self.mask_norm = nn.LayerNorm(num_classes)
        _init_linear(self)
        trunc_normal_(self.class_tokens, std=0.02)
        for projection in (self.proj_patches, self.proj_classes):
            nn.init.normal_(projection.weight, std=dim**-0.5)

    def forward(self, patches: Tensor) -> Tensor:
        """(B, N, C) to (B, N, K)."""
        x, z = self.tokens(patches)
        x = F.normalize(self.proj_patches(x), dim=-1)
        z = F.normalize(self.proj_classes(z), dim=-1)
        return self.mask_norm(x @ z.mT)

    def tokens(self, patches: Tensor) -> DecodedTokens:
        """Patches and classes after the blocks and the last normalisation."""
        classes = self.class_tokens.expand(patches.shape[0], -1, -1)
        x = self.proj(patches)
        x = torch.cat([x, classes.to(x.dtype)], dim=1)
        x, _ = scan_blocks(self.blocks, x, checkpointing=self.grad_checkpointing)
        x = self.norm(x)
        return DecodedTokens(x[:, : patches.shape[1]], x[:, patches.shape[1] :])


def _init_linear(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.Linear):
            trunc_normal_(part.weight, std=0.02)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
