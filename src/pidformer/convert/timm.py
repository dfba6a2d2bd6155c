"""timm's vision transformers with a controller: same weights, same keys, our loop over depth.

A model, its blocks and their attention become instances of subclasses of their own classes, whose
forward carries the state along: `x, state = block(x, state)`. Nothing else about them changes.
"""
# B images, N tokens, C width, H heads, D head dim

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import apply_rot_embed_cat
from timm.layers.attention import Attention, AttentionRope
from timm.models.eva import Eva, EvaAttention, EvaBlock, EvaBlockPostNorm
from timm.models.vision_transformer import Block, ResPostBlock, VisionTransformer
from torch import Tensor, nn

from pidformer.control.gains import PIDGains
from pidformer.control.pid import PIDState
from pidformer.convert.conversion import Conversion, remove, shown_gains
from pidformer.errors import InputError
from pidformer.models.vit import ControlledDepth, learned_parameters
from pidformer.nn.attention import attend, seen_values
from pidformer.ops.attention import of_queries

for _step in ("seen_values", "of_queries"):
    torch.fx.wrap(_step)  # each is one step of a graph: what it does depends on shapes

Carried = tuple[Tensor, PIDState | None]
MODELS = (VisionTransformer, Eva)
BLOCKS = (Block, ResPostBlock, EvaBlock, EvaBlockPostNorm)
ATTENTION = (Attention, AttentionRope, EvaAttention)


class Controlled:
    """Marks what was converted; `original` is the class it was and becomes again."""

    original: type[nn.Module]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For pickle, which finds a class by name: this one is made again by `_made`."""
        kind: Any = type(self)
        if "original" not in kind.__dict__:  # a subclass, with a name of its own
            return super().__reduce_ex__(protocol)
        return _empty, kind.__bases__, self.__getstate__()


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
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Carried:
        gate = self.gate(x).sigmoid() if self.gate is not None else None
        q, k, value = _projected(self, x)
        q, k = self.q_norm(q), self.k_norm(k)
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
        merged = self.norm(out.transpose(1, 2).flatten(2))  # (B, N, C)
        if gate is not None:
            merged = merged * gate
        return self.proj_drop(self.proj(merged)), state

    def extra_repr(self) -> str:
        return shown_gains(self)


def _projected(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, (B, H, N, D) each, as the three classes of timm make them."""
    if attention.qkv is None:
        q, k, v = (
            project(x).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        return q, k, v
    if getattr(attention, "q_bias", None) is None:
        packed = attention.qkv(x)
    else:
        bias = torch.cat((attention.q_bias, attention.k_bias, attention.v_bias))
        if attention.qkv_bias_separate:
            packed = attention.qkv(x) + bias
        else:
            packed = F.linear(x, attention.qkv.weight, bias)
    packed = packed.unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
    q, k, v = packed.unbind(0)
    return q, k, v


def _rotated(attention: Any, x: Tensor, rope: Tensor) -> Tensor:
    """Queries or keys, turned by their positions; class and register tokens have none."""
    prefix, half = attention.num_prefix_tokens, getattr(attention, "rotate_half", False)
    turned = apply_rot_embed_cat(x[:, :, prefix:], rope, half=half)
    return torch.cat([x[:, :, :prefix], turned], dim=2)


class ControlledBlock(Controlled):
    """One of timm's blocks as `x, state = block(x, state)`: norms before its parts, or behind.

    x goes through `out`, as in `PIDBlock`.
    """

    def forward(self: Any, x: Tensor, state: PIDState | None = None, **options: Any) -> Carried:
        is_post = issubclass(self.original, ResPostBlock | EvaBlockPostNorm)
        mixed, state = self.attn(x if is_post else self.norm1(x), state, **options)
        x = x + self.drop_path1(self.norm1(mixed) if is_post else _scaled(self, 1, mixed))
        made = self.mlp(x if is_post else self.norm2(x))
        x = x + self.drop_path2(self.norm2(made) if is_post else _scaled(self, 2, made))
        return self.out(x), state


def _scaled(block: Any, part: int, x: Tensor) -> Tensor:
    """Layer scale, by the two names that timm has for it."""
    if issubclass(block.original, Block):
        return getattr(block, f"ls{part}")(x)
    gamma = getattr(block, f"gamma_{part}")
    return x if gamma is None else gamma * x


class ControlledModel(Controlled, ControlledDepth):
    """A converted vision transformer."""

    _no_split_modules: tuple[str, ...]
    _conversion: Conversion

    @property
    def gains(self) -> PIDGains | tuple[PIDGains, ...]:
        """The gains the model was converted with: for all layers, or one per layer."""
        return self._conversion.model_gains

    def no_weight_decay(self: Any) -> set[str]:
        """timm's set, and the learned gains."""
        return set(self.original.no_weight_decay(self)) | learned_parameters(self)


class ControlledEva(ControlledModel):
    """The same for timm's `Eva`, whose blocks are told the rotation of positions."""

    def _begin(self: Any, x: Tensor, blocks: Sequence[Any]) -> tuple[Tensor, Sequence[Any]]:
        tokens, rope = self._pos_embed(self.patch_embed(x))
        steps = [partial(block, rope=rope) for block in blocks]
        if getattr(self, "rope_mixed", False) and rope is not None:  # one rotation per layer
            steps = [partial(block, rope=rope[depth]) for depth, block in enumerate(blocks)]
        return self.norm_pre(tokens), steps


def is_timm(model: nn.Module) -> bool:
    """Whether this is timm's: a vision transformer, or something else that timm made."""
    return isinstance(model, MODELS) or type(model).__module__.startswith("timm.")


def convert_timm(model: Any, conversion_for: Any) -> None:
    """Convert in place; refused before anything is touched, or done as a whole."""
    is_again = isinstance(model, ControlledModel)
    if not is_again:
        _check(model)
    attention = [block.attn for block in model.blocks]
    conversion: Conversion = conversion_for(len(attention))
    heads = _state_heads(attention)
    controllers = conversion.controllers(attention, heads)
    if is_again:
        revert_timm(model)
    for block in model.blocks:
        block.attn.__class__ = _made(ControlledAttention, block.attn.__class__)
        block.attn.state_heads = heads
        block.out = nn.Identity()
        block.__class__ = _made(ControlledBlock, block.__class__)
    conversion.put(attention, controllers)
    mixin = ControlledEva if isinstance(model, Eva) else ControlledModel
    model.__class__ = _made(mixin, model.__class__)
    model._conversion = conversion
    model._no_split_modules = (type(model.blocks[0]).__name__,)


def _state_heads(attention: Sequence[Any]) -> int:
    """How many heads the state has: those of the values, or of the queries if layers differ."""
    heads = {getattr(module, "num_kv_heads", module.num_heads) for module in attention}
    return heads.pop() if len(heads) == 1 else attention[0].num_heads


def revert_timm(model: Any) -> None:
    """The classes and attributes that the model had before."""
    remove([block.attn for block in model.blocks])
    for block in model.blocks:
        del block.attn.state_heads, block.out
    for module in [model, *model.blocks, *(block.attn for block in model.blocks)]:
        module.__class__ = module.original
    del model._conversion, model._no_split_modules


@cache
def _made(mixin: Any, original: Any) -> Any:
    name = f"Controlled{original.__name__}"
    return type(name, (mixin, original), {"original": original, "__doc__": mixin.__doc__})


def _empty(mixin: Any, original: Any) -> Any:
    """An instance of a made class, to be filled by pickle."""
    kind = _made(mixin, original)
    return kind.__new__(kind)


def _check(model: Any) -> None:
    known = next((kind for kind in MODELS if isinstance(model, kind)), None)
    if known is None or any(
        getattr(type(model), name) is not getattr(known, name)
        for name in ("forward_features", "forward_intermediates")
    ):
        names = " and ".join(kind.__name__ for kind in MODELS)
        raise InputError(
            f"{type(model).__name__} cannot be converted; those of timm's models can whose loop "
            f"over depth is that of {names} (vit_*, deit_*, deit3_*, *_dinov2, eva02_*)"
        )
    for depth, block in enumerate(model.blocks):
        if type(block) not in BLOCKS:
            raise _unknown("block", depth, block, BLOCKS)
        if type(block.attn) not in ATTENTION:
            raise _unknown("attention", depth, block.attn, ATTENTION)


def _unknown(what: str, depth: int, found: object, known: tuple[type, ...]) -> InputError:
    names = ", ".join(kind.__name__ for kind in known)
    return InputError(
        f"the {what} of layer {depth} is {type(found).__name__}, which cannot be converted; "
        f"supported: {names}"
    )
