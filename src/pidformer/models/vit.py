"""Vision transformer with a controller: timm's own, with our block and our loop over depth."""
# B images, N tokens, C width

import math
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, get_args

import torch
from timm.layers import trunc_normal_
from timm.models._features import feature_take_indices
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from pidformer.control.gains import PIDGains
from pidformer.control.pid import FirstLayer
from pidformer.errors import InputError, check_known
from pidformer.models.gains import (
    NO_WORDS,
    GainsLike,
    ModelGains,
    is_gain,
    layer_gains,
    learned_layers,
    refuse_terms,
    resolve_gains,
)
from pidformer.models.patches import PositionResize, ProjectedPatches, resize_positions
from pidformer.nn.attention import PIDAttention
from pidformer.nn.block import PIDBlock
from pidformer.nn.depth import Observer, scan_blocks
from pidformer.nn.gains import LearnedGains, learned_gains
from pidformer.nn.variants import take_variant

DEIT_STD = 0.02


class ControlledDepth:
    """`scan_blocks` in place of timm's own loops, for blocks `x, state = block(x, state)`."""

    blocks: Any
    norm: Any
    num_prefix_tokens: int
    patch_embed: Any
    patch_drop: Any
    norm_pre: Any
    grad_checkpointing: bool

    def forward_features(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Images to normalised tokens, (B, N, C)."""
        return self.norm(self._scan(x, self.blocks, attn_mask=attn_mask, is_causal=is_causal))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> list[Any] | tuple[Tensor, list[Any]] | dict[str, Any]:
        """Outputs of some blocks, with timm's options and timm's return values."""
        check_known("output_fmt", output_fmt, ("NCHW", "NLC"))
        size = x.shape[-2:]
        options = {"attn_mask": attn_mask, "is_causal": is_causal}
        x, taken = self._scan_taking(x, indices, stop_early, **options)
        taken = [self.norm(tokens) for tokens in taken] if norm else taken
        split = self.num_prefix_tokens
        prefixes = [tokens[:, :split] for tokens in taken] if split and return_prefix_tokens else []
        outputs = [tokens[:, split:] for tokens in taken]
        if output_fmt == "NCHW":
            grid = self.patch_embed.dynamic_feat_size(size)
            outputs = [out.transpose(1, 2).unflatten(2, grid).contiguous() for out in outputs]
        if output_dict:
            named: dict[str, Any] = {"image_intermediates": outputs}
            if prefixes:
                named["image_intermediates_prefix"] = prefixes
            return named if intermediates_only else named | {"image_features": self.norm(x)}
        paired = list(zip(outputs, prefixes, strict=True)) if prefixes else outputs
        return paired if intermediates_only else (self.norm(x), paired)

    def _scan_taking(
        self, x: Tensor, indices: int | Sequence[int] | None, stop_early: bool, **options: Any
    ) -> tuple[Tensor, list[Tensor]]:
        """The last tokens, and the outputs of the blocks that timm's `indices` name."""
        take, last = feature_take_indices(len(self.blocks), indices)
        taken: list[Tensor] = []

        def observe(depth: int, tokens: Tensor, _: object) -> None:
            if depth in take:
                taken.append(tokens)

        blocks = list(self.blocks)[: last + 1] if stop_early else self.blocks
        return self._scan(x, blocks, observe, **options), taken

    def embed(self, x: Tensor) -> Tensor:
        """Images (B, 3, height, width) to the tokens that the first block takes, (B, N, C)."""
        return self.norm_pre(self.patch_drop(self._pos_embed(self.patch_embed(x))))  # type: ignore[attr-defined]

    def _begin(self, x: Tensor, blocks: Sequence[Any]) -> tuple[Tensor, Sequence[Any]]:
        """What the loop starts from, and its steps."""
        return self.embed(x), blocks

    def _scan(
        self,
        x: Tensor,
        blocks: Sequence[nn.Module],
        observe: Observer | None = None,
        **block_options: Any,
    ) -> Tensor:
        """Images to tokens, through the embedding and the given blocks."""
        tokens, steps = self._begin(x, blocks)
        tokens, _ = scan_blocks(
            steps,
            tokens,
            checkpointing=self.grad_checkpointing,
            observe=observe,
            network=steps,
            **block_options,
        )
        return tokens


class PIDVisionTransformer(ControlledDepth, VisionTransformer):
    """timm's `VisionTransformer` with PID attention; its other keywords keep their meaning.

    `gains` is one controller for all layers (`PIDGains`, "P,I,D,BETA", a preset name or a
    mapping), a sequence with one for each layer, or None for softmax attention. `learn_gains`
    trains them per layer and head inside the region of stability. `init_std` is the standard
    deviation that linear weights, positions and class token start with; narrow models want more
    than DeiT's 0.02, whose attention starts flat. `value_init` and `proj_init` multiply what the
    attention's value and output projections start with. `position_resize` says how positions
    follow the image size with timm's `dynamic_img_size`. The state-dict keys are timm's, plus
    `blocks.*.attn.gains.*` when gains are learned.

    For comparison with others: `integral_leak`, `integral_limit` and `value_residual` (a share, or
    "learned"), as `nn.variants` has them.
    """

    def __init__(
        self,
        *,
        depth: int = 12,
        gains: GainsLike | Sequence[GainsLike] | None = None,
        learn_gains: bool = False,
        first_layer: FirstLayer = "free",
        attention_residual: bool = True,
        init_std: float = DEIT_STD,
        value_init: float = 1.0,
        proj_init: float = 1.0,
        position_resize: PositionResize = "bicubic",
        **options: Any,
    ) -> None:
        check_known("position_resize", position_resize, get_args(PositionResize))
        self._init_std = _not_negative("init_std", init_std)
        self._value_init = _not_negative("value_init", value_init)
        self._proj_init = _not_negative("proj_init", proj_init)
        self._position_resize = position_resize
        if "block_fn" in options:
            raise InputError("PIDVisionTransformer brings its own block; leave block_fn out")
        resolved = resolve_gains(gains, depth)
        per_layer = layer_gains(resolved, depth)
        refuse_terms(per_layer, NO_WORDS)
        is_learned = learned_layers(per_layer, learn_gains, first_layer)
        attention_at = take_variant(options)

        def build_block(*, depth: int, num_heads: int, **options: Any) -> PIDBlock:
            options = _block_options(options)
            layer: PIDGains | LearnedGains | None = per_layer[depth]
            if is_learned[depth]:
                place = {name: options.get(name) for name in ("device", "dtype")}
                layer = learned_gains(per_layer[depth], num_heads, **place)
            return PIDBlock(
                num_heads=num_heads,
                gains=layer,
                first_layer=first_layer,
                attention_residual=attention_residual,
                attention=attention_at(depth),
                **options,
            )

        options.setdefault("embed_layer", ProjectedPatches)
        super().__init__(depth=depth, block_fn=build_block, **options)
        self._gains = resolved

    @property
    def gains(self) -> ModelGains:
        """The gains the model was made with: for all layers, one per layer, or None."""
        return self._gains

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """DeiT's initialisation: timm's, but for a class token drawn like the positions.

        timm draws it with standard deviation 1e-6, DeiT with 0.02. Other modes are timm's.
        """
        super().init_weights(mode, needs_reset)
        if mode or self.weight_init_mode:
            return
        if self.cls_token is not None:
            trunc_normal_(self.cls_token, std=DEIT_STD)
        if self._init_std != DEIT_STD:
            drawn = [m.weight for m in self.modules() if isinstance(m, nn.Linear)]
            drawn += [p for p in (self.cls_token, self.pos_embed) if p is not None]
            with torch.no_grad():
                for parameter in drawn:
                    parameter.mul_(self._init_std / DEIT_STD)
        with torch.no_grad():
            for block in self.blocks:
                attn = block.attn
                rows = attn.num_kv_heads * attn.head_dim  # queries, keys, then values
                attn.qkv.weight[-rows:].mul_(self._value_init)
                attn.proj.weight.mul_(self._proj_init)

    def no_weight_decay(self) -> set[str]:
        """timm's set, and the learned gains."""
        return super().no_weight_decay() | set(filter(is_gain, self.state_dict()))

    def _pos_embed(self, x: Tensor) -> Tensor:
        """timm's, but for positions that are resized as `position_resize` says."""
        is_ours = self.dynamic_img_size and self._position_resize != "bicubic"
        if not is_ours or self.pos_embed is None:
            return super()._pos_embed(x)
        prefix = [t for t in (self.cls_token, self.reg_token) if t is not None]
        num_prefix = 0 if self.no_embed_class else self.num_prefix_tokens
        grid = (x.shape[1], x.shape[2])  # (B, height, width, C)
        positions = resize_positions(
            self.pos_embed, self.patch_embed.grid_size, grid, num_prefix, self._position_resize
        )
        x = x.flatten(1, 2)
        if self.no_embed_class:
            x = x + positions
        x = torch.cat([*(t.expand(x.shape[0], -1, -1) for t in prefix), x], dim=1)
        return self.pos_drop(x if self.no_embed_class else x + positions)


def _not_negative(name: str, given: object) -> float:
    """A standard deviation or a factor that weights start with, checked."""
    if isinstance(given, bool) or not isinstance(given, float | int) or not 0 <= given < math.inf:
        raise InputError(f"{name} must be a number that is not negative, as 0.5; got {given!r}")
    return given


def _block_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """timm's keywords for a block; those `PIDBlock` lacks must be at the default of timm's own."""
    ours = {*signature(PIDBlock).parameters, *signature(PIDAttention).parameters}
    theirs = signature(Block).parameters
    for name, value in options.items():
        if name not in ours and (name not in theirs or value != theirs[name].default):
            raise InputError(f"PIDVisionTransformer has no {name}={value!r}; leave {name} out")
    return {name: value for name, value in options.items() if name in ours}
