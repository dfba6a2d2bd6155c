"""timm's vision transformers with a controller: same weights, our loop over depth.

A model, its blocks and their attention become instances of subclasses of their own classes, whose
forward carries the state along: `x, state = block(x, state)`. A state dict has one key more, the
mark of the controller. Nothing else about them changes.
"""
# B images, N tokens, C width, H heads, D head dim

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from timm.layers import apply_rot_embed_cat
from timm.layers.attention import Attention, AttentionRope
from timm.models import beit, vision_transformer_sam
from timm.models.beit import Beit
from timm.models.eva import Eva, EvaAttention, EvaBlock, EvaBlockPostNorm
from timm.models.naflexvit import NaFlexVit
from timm.models.vision_transformer import Block, ResPostBlock, VisionTransformer
from timm.models.vision_transformer_relpos import (
    RelPosAttention,
    RelPosBlock,
    ResPostRelPosBlock,
    VisionTransformerRelPos,
)
from timm.models.vision_transformer_sam import VisionTransformerSAM
from torch import Tensor, nn

from pidformer.control.pid import PIDState
from pidformer.convert.controlled import Carried, Controlled, ControlledModel, made, projected
from pidformer.convert.conversion import Conversion, remove, shown_gains
from pidformer.convert.mark import Mark
from pidformer.convert.timm_sam import ControlledSAM, ControlledSAMAttention, ControlledSAMBlock
from pidformer.errors import InputError
from pidformer.nn.attention import attend, seen_values
from pidformer.nn.depth import scan_blocks
from pidformer.ops.attention import of_queries

for _step in ("seen_values", "of_queries"):
    torch.fx.wrap(_step)  # each is one step of a graph: what it does depends on shapes

POST_NORM = (ResPostBlock, EvaBlockPostNorm, ResPostRelPosBlock)

REASONS = {
    "Cait": "its heads mix each other's scores, so that a head's output is not of its own values",
    "SwinTransformer": "it merges tokens between its stages, and those have no value in the first "
    "layer",
}
"""Why classes of timm that people ask for cannot be converted."""


class ControlledAttention(Controlled):
    """timm's attention, plus the control: `x, state = attention(x, state)`.

    The state is kept per value head or, where layers differ in how many they have, per query head.
    """

    def forward(
        self: Any,
        x: Tensor,
        state: PIDState | None = None,
        *,
        rope: Tensor | None = None,
        bias: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Carried:
        gate = self.gate(x).sigmoid() if getattr(self, "gate", None) is not None else None
        q, k, value = projected(self, x)
        q, k = _through(self, "q_norm", q), _through(self, "k_norm", k)
        attn_mask = _biased(self, bias, attn_mask)
        if rope is not None:
            q, k = (_rotated(self, part, rope).type_as(value) for part in (q, k))
        own_heads = getattr(self, "num_kv_heads", self.num_heads)
        if self.state_heads != own_heads:
            value = of_queries(value, q)
        v = seen_values(self, value, state)
        k, v = of_queries(k, q), of_queries(v, q)
        out, state = attend(
            self, q, k, v, state, attn_mask=attn_mask, is_causal=is_causal, value=value
        )
        merged = _through(self, "norm", out.transpose(1, 2).flatten(2))  # (B, N, C)
        if gate is not None:
            merged = merged * gate
        return self.proj_drop(self.proj(merged)), state

    def extra_repr(self) -> str:
        return shown_gains(self)


def _through(attention: Any, name: str, x: Tensor) -> Tensor:
    """x through a part that not every attention of timm has."""
    part = getattr(attention, name, None)
    return x if part is None else part(x)


def _biased(attention: Any, bias: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """What is added to the scores: a bias by relative position, the model's or the block's own."""
    if getattr(attention, "relative_position_bias_table", None) is not None:  # BEiT
        own = attention._get_rel_pos_bias()
        bias = own if bias is None else own + bias
    elif getattr(attention, "rel_pos", None) is not None:
        bias = attention.rel_pos.get_bias()
    if bias is None or mask is None:
        return mask if bias is None else bias
    return bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask


def _rotated(attention: Any, x: Tensor, rope: Tensor) -> Tensor:
    """Queries or keys, turned by their positions; class and register tokens have none."""
    prefix, half = attention.num_prefix_tokens, getattr(attention, "rotate_half", False)
    turned = apply_rot_embed_cat(x[:, :, prefix:], rope, half=half)
    return torch.cat([x[:, :, :prefix], turned], dim=2)


class ControlledBlock(Controlled):
    """One of timm's blocks, pre- or post-norm, as `x, state = block(x, state)`, with an `out`."""

    def forward(self: Any, x: Tensor, state: PIDState | None = None, **options: Any) -> Carried:
        is_post = issubclass(self.original, POST_NORM)
        mixed, state = self.attn(x if is_post else self.norm1(x), state, **options)
        x = x + self.drop_path1(self.norm1(mixed) if is_post else _scaled(self, 1, mixed))
        made = self.mlp(x if is_post else self.norm2(x))
        x = x + self.drop_path2(self.norm2(made) if is_post else _scaled(self, 2, made))
        return self.out(x), state


def _scaled(block: Any, part: int, x: Tensor) -> Tensor:
    """Layer scale, by the two names that timm has for it."""
    if issubclass(block.original, Block | RelPosBlock):
        return getattr(block, f"ls{part}")(x)
    gamma = getattr(block, f"gamma_{part}")
    return x if gamma is None else gamma * x


class ControlledEva(ControlledModel):
    """The same for timm's `Eva`, whose blocks are told the rotation of positions."""

    def _begin(self: Any, x: Tensor, blocks: Sequence[Any]) -> tuple[Tensor, Sequence[Any]]:
        tokens, rope = self._pos_embed(self.patch_embed(x))
        steps = [partial(block, rope=rope) for block in blocks]
        if getattr(self, "rope_mixed", False) and rope is not None:  # one rotation per layer
            steps = [partial(block, rope=rope[depth]) for depth, block in enumerate(blocks)]
        return self.norm_pre(tokens), steps


class ControlledBias(ControlledModel):
    """The same for models whose scores have a bias by relative position, which blocks may share."""

    def _begin(self: Any, x: Tensor, blocks: Sequence[Any]) -> tuple[Tensor, Sequence[Any]]:
        tokens = self.patch_embed(x)
        if self.cls_token is not None:
            tokens = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), tokens), dim=1)
        if isinstance(self, Beit):
            tokens = self.pos_drop(tokens if self.pos_embed is None else tokens + self.pos_embed)
            shared = None if self.rel_pos_bias is None else self.rel_pos_bias()
        else:
            shared = None if self.shared_rel_pos is None else self.shared_rel_pos.get_bias()
        return tokens, [partial(block, bias=shared) for block in blocks]


class ControlledNaFlex(ControlledModel):
    """The same for `NaFlexVit`, which takes patches with their coordinates beside whole images."""

    @property
    def patch_embed(self: Any) -> Any:
        return self.embeds

    def embed(self: Any, x: Tensor) -> Tensor:
        return self._forward_embeds(x, None, None, None)["patches"]

    def forward_features(  # type: ignore[override]
        self: Any,
        patches: Tensor,
        patch_coord: Tensor | None = None,
        patch_valid: Tensor | None = None,
        attn_mask: Tensor | None = None,
    ) -> Tensor | dict[str, Tensor]:
        found = self._forward_embeds(patches, patch_coord, patch_valid, attn_mask)
        tokens, _ = scan_blocks(
            self.blocks,
            found["patches"],
            checkpointing=self.grad_checkpointing,
            network=self.blocks,
            attn_mask=found["attn_mask"],
        )
        tokens = self.norm(tokens)
        if patch_coord is None:
            return tokens
        return {"patches": tokens, "patch_valid": found["patch_valid"]}

    def forward_intermediates(self, x: Any, *args: Any, **options: Any) -> Any:
        if isinstance(x, dict):
            raise InputError("a converted NaFlexVit gives intermediate tokens of whole images only")
        return super().forward_intermediates(x, *args, **options)


MODELS = {
    VisionTransformer: ControlledModel,
    Eva: ControlledEva,
    Beit: ControlledBias,
    VisionTransformerRelPos: ControlledBias,
    NaFlexVit: ControlledNaFlex,
    VisionTransformerSAM: ControlledSAM,
}
"""The models that can be converted, and what replaces the loop of each."""
BLOCKS = {
    **dict.fromkeys((Block, EvaBlock, beit.Block, RelPosBlock), ControlledBlock),
    vision_transformer_sam.Block: ControlledSAMBlock,
    **dict.fromkeys(POST_NORM, ControlledBlock),
}
_PLAIN = (Attention, AttentionRope, EvaAttention, beit.Attention, RelPosAttention)
ATTENTION = {
    **dict.fromkeys(_PLAIN, ControlledAttention),
    vision_transformer_sam.Attention: ControlledSAMAttention,
}


def is_timm(model: nn.Module) -> bool:
    """Whether this is timm's: a vision transformer, or something else that timm made."""
    return isinstance(model, tuple(MODELS)) or type(model).__module__.startswith("timm.")


def convert_timm(model: Any, conversion_for: Any) -> None:
    """Convert in place; refused before anything is touched, or done as a whole."""
    is_again = isinstance(model, ControlledModel)
    if not is_again:
        _check(model)
    attention = [block.attn for block in model.blocks]
    conversion: Conversion = conversion_for(len(attention))
    own = {getattr(module, "num_kv_heads", module.num_heads) for module in attention}
    heads = own.pop() if len(own) == 1 else attention[0].num_heads  # of the state
    controllers = conversion.controllers(attention, heads)
    if is_again:
        revert_timm(model)
    for block in model.blocks:
        block.attn.__class__ = made(ATTENTION[type(block.attn)], block.attn.__class__)
        block.attn.state_heads = heads
        block.out = nn.Identity()
        block.__class__ = made(BLOCKS[type(block)], block.__class__)
    conversion.put(attention, controllers)
    mixin = next(MODELS[kind] for kind in MODELS if isinstance(model, kind))
    model.__class__ = made(mixin, model.__class__)
    model.pidformer = Mark(conversion)
    model._no_split_modules = (type(model.blocks[0]).__name__,)


def revert_timm(model: Any) -> None:
    """The classes and attributes that the model had before."""
    remove([block.attn for block in model.blocks])
    for block in model.blocks:
        del block.attn.state_heads, block.out
    for module in [model, *model.blocks, *(block.attn for block in model.blocks)]:
        module.__class__ = module.original
    del model.pidformer, model._no_split_modules


def _check(model: Any) -> None:
    known = next((kind for kind in MODELS if isinstance(model, kind)), None)
    if known is None or any(
        getattr(type(model), name) is not getattr(known, name)
        for name in ("forward_features", "forward_intermediates")
    ):
        names = ", ".join(kind.__name__ for kind in MODELS)
        kinds = [kind.__name__ for kind in type(model).__mro__]
        reason = next((f": {REASONS[kind]}" for kind in kinds if kind in REASONS), "")
        raise InputError(
            f"{kinds[0]} cannot be converted{reason}; those of timm's models can whose loop "
            f"over depth is that of one of {names} (vit_*, deit_*, eva02_*, beit*_*, naflexvit_*, "
            "samvit_*)"
        )
    if isinstance(model, NaFlexVit) and model.rope is not None:
        raise InputError("a NaFlexVit that rotates its positions cannot be converted; others can")
    for depth, block in enumerate(model.blocks):
        if type(block) not in BLOCKS:
            raise _unknown("block", depth, block, BLOCKS)
        if type(block.attn) not in ATTENTION:
            raise _unknown("attention", depth, block.attn, ATTENTION)


def _unknown(what: str, depth: int, found: object, known: Iterable[type]) -> InputError:
    names = ", ".join(dict.fromkeys(kind.__name__ for kind in known))
    return InputError(
        f"the {what} of layer {depth} is {type(found).__name__}, which cannot be converted; "
        f"supported: {names}"
    )
