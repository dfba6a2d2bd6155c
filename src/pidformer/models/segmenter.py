"""Segmenter: a vision transformer that labels every pixel, with a controller in both its parts."""
# B images, N patches, K classes, C width

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from pidformer.control.gains import PIDGains
from pidformer.control.pid import FirstLayer, widened
from pidformer.errors import InputError
from pidformer.models.gains import ModelGains, acts_in_layer, is_gain
from pidformer.models.vit import PIDVisionTransformer
from pidformer.nn.block import PIDBlock
from pidformer.nn.depth import scan_blocks
from pidformer.nn.gains import LearnedGains, learned_gains

NORM_EPS = 1e-5
"""LayerNorm's epsilon in Segmenter's encoder (torch's default); DeiT is pre-trained with 1e-6."""


class LinearDecoder(nn.Module):
    """score = W patch + b."""

    gains = None
    grad_checkpointing = False

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
            is_learned = learn_gains and acts_in_layer(gains, layer, first_layer)
            return learned_gains(gains, num_heads) if is_learned else gains

        self.gains = gains
        self.num_classes = num_classes
        self.grad_checkpointing = False
        self.proj = nn.Linear(dim, dim)
        self.class_tokens = nn.Parameter(torch.empty(1, num_classes, dim))
        options: Any = {"attn_drop": dropout, "proj_drop": dropout, "first_layer": first_layer}
        blocks = (PIDBlock(dim, num_heads, controller(n), **options) for n in range(depth))
        self.blocks = nn.ModuleList(blocks)
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
        classes = self.class_tokens.expand(patches.shape[0], -1, -1)
        x = self.proj(patches)
        x = torch.cat([x, classes.to(x.dtype)], dim=1)
        x, _ = scan_blocks(
            self.blocks, x, checkpointing=self.grad_checkpointing, network=self.blocks
        )
        x, z = self.norm(x).tensor_split([patches.shape[1]], dim=1)
        x = F.normalize(self.proj_patches(x), dim=-1)
        z = F.normalize(self.proj_classes(z), dim=-1)
        return self.mask_norm(x @ z.mT)


def _init_linear(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.Linear):
            trunc_normal_(part.weight, std=0.02)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


class Segmenter(nn.Module):
    """Normalised images (B, channels, height, width) of any size to logits (B, K, height, width).

    Images are padded with zeros at the right and the bottom to whole patches; the encoder's
    positions are resized to the grid; the decoder scores each patch (prefix tokens are dropped),
    and the scores are resized to the image, bilinear. Keys: `encoder.*` (timm's), `decoder.*`.
    """

    def __init__(
        self, encoder: PIDVisionTransformer, decoder: MaskTransformer | LinearDecoder
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    @property
    def gains(self) -> ModelGains:
        """The encoder's gains."""
        return self.encoder.gains

    @property
    def decoder_gains(self) -> ModelGains:
        return self.decoder.gains

    @property
    def num_classes(self) -> int:
        return self.decoder.num_classes

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the blocks of both parts in the backward pass."""
        self.encoder.set_grad_checkpointing(enable)
        self.decoder.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Positions, class tokens and learned gains."""
        inner = {f"encoder.{name}" for name in self.encoder.no_weight_decay()}
        names = (f"decoder.{name}" for name in self.decoder.state_dict())
        return inner | {n for n in names if is_gain(n) or n == "decoder.class_tokens"}

    def forward(self, images: Tensor) -> Tensor:
        """Logits at the size of the images."""
        if images.ndim != 4:
            raise InputError(f"images must be (B, C, height, width), got {tuple(images.shape)}")
        height, width = images.shape[-2:]
        down, right = self.encoder.patch_embed.patch_size
        images = F.pad(images, (0, -width % right, 0, -height % down))
        scores = self.decoder(self.encode(images))  # (B, N, K)
        grid = (images.shape[-2] // down, images.shape[-1] // right)
        # Scores of half precision are resized in float32: K planes at the size of the image are
        # the largest tensor here, and what the loss reads.
        planes = scores.mT.unflatten(2, grid)
        size = (images.shape[-2], images.shape[-1])
        logits = F.interpolate(widened(planes), size=size, mode="bilinear", align_corners=False)
        return logits[..., :height, :width]

    def encode(self, images: Tensor) -> Tensor:
        """Patch tokens (B, N, C) of images of whole patches, after the last normalisation."""
        return self.encoder.forward_features(images)[:, self.encoder.num_prefix_tokens :]
