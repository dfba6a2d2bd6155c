"""Segmenter: a vision transformer that labels every pixel, with a controller in both its parts."""
# B images, N patches, K classes, C width

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pidformer.errors import InputError
from pidformer.models.gains import ModelGains
from pidformer.models.mask_transformer import LinearDecoder, MaskTransformer
from pidformer.models.vit import PIDVisionTransformer

NORM_EPS = 1e-5
"""LayerNorm's epsilon in Segmenter's encoder (torch's default); DeiT is pre-trained with 1e-6."""


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
        return self.decoder.gains if isinstance(self.decoder, MaskTransformer) else None

    @property
    def num_classes(self) -> int:
        return self.decoder.num_classes

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the blocks of both parts in the backward pass."""
        self.encoder.set_grad_checkpointing(enable)
        if isinstance(self.decoder, MaskTransformer):
            self.decoder.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Positions, class tokens and learned gains."""
        inner = {f"encoder.{name}" for name in self.encoder.no_weight_decay()}
        own = ("class_tokens", ".gains.")
        names = (name for name, _ in self.decoder.named_parameters())
        return inner | {f"decoder.{name}" for name in names if any(part in name for part in own)}

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
        wide = planes.to(torch.promote_types(planes.dtype, torch.float32))
        size = (images.shape[-2], images.shape[-1])
        logits = F.interpolate(wide, size=size, mode="bilinear", align_corners=False)
        return logits[..., :height, :width]

    def encode(self, images: Tensor) -> Tensor:
        """Patch tokens (B, N, C) of images of whole patches, after the last normalisation."""
        return self.encoder.forward_features(images)[:, self.encoder.num_prefix_tokens :]
