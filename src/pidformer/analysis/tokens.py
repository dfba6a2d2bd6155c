"""The tokens of a model at each depth."""
# B batch, N tokens, C width, H heads, D head dim

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Literal, TypedDict, get_args

from timm.models.vision_transformer import Block
from torch import Tensor, nn

from pidformer.analysis.inspection import (
    AttentionCall,
    Model,
    call,
    check_inputs,
    inner_model,
    is_hugging_face,
    looking,
    visit_attention,
)
from pidformer.errors import InputError, check_known
from pidformer.nn import PIDBlock, evaluating

Visit = Callable[[int, Tensor], None]
TokensOf = Literal["blocks", "norm", "values"]
Which = Literal["all", "patch"]


class TokenChoice(TypedDict, total=False):
    """Which tokens are looked at; `visit_tokens` says what each keyword means."""

    of: TokensOf
    tokens: Which
    prefix: int | None
    layers: Sequence[nn.Module] | None


def visit_tokens(
    model: Model,
    images: Tensor,
    visit: Visit,
    *,
    of: TokensOf = "blocks",
    tokens: Which = "all",
    prefix: int | None = None,
    layers: Sequence[nn.Module] | None = None,
) -> None:
    """Call `visit(depth, tokens)` with the tokens (B, N, C) at each depth, in fp32.

    `of` says which tensor:

    - "blocks": depth 0 is the embedding, depth l the output of block l: the residual stream,
      before the next or the last normalisation
    - "norm": depth l is the same after the normalisation that reads it, that of the next block or
      the last one
    - "values": depth l is v of layer l, heads side by side

    `tokens="patch"` leaves out the first `prefix` tokens (class, distillation, registers); timm's
    models say how many. Evaluation mode, no gradients, no autocast. `images` are what `model`
    takes: pixels in [0, 1] for a `PixelModel`, token ids for a language model.

    Read from timm's vision transformers and ours (`model.blocks`), from Hugging Face's models
    (`output_hidden_states`; some apply the last normalisation to the last of these), and from any
    other callable by the outputs of the modules in `layers` (a plain function cannot be put into
    evaluation mode, only these modules can).
    """
    for name, value, known in (("of", of, TokensOf), ("tokens", tokens, Which)):
        check_known(name, value, get_args(known))
    check_inputs(model, images)
    skip = _prefix(model, prefix) if tokens == "patch" else 0

    def show(depth: int, found: Any) -> None:
        found = found[0] if isinstance(found, tuple) else found
        if not isinstance(found, Tensor) or found.ndim != 3:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"a layer of {type(inner_model(model)).__name__} gives {shape}, not tokens "
                "(B, N, C); name the modules that do with layers="
            )
        found = found[:, skip:].detach().float()
        if not bool(found.isfinite().all()):
            raise InputError(
                f"the tokens at depth {depth} of {type(inner_model(model)).__name__} are not "
                "finite; check its weights and the inputs"
            )
        visit(depth, found)

    if layers is not None:
        if of != "blocks":
            raise InputError(f"layers= says which outputs to read; leave of={of!r} out")
        _visit_outputs(model, images, list(layers), None, show)
    elif of == "values":
        _visit_values(model, images, show)
    elif of == "norm":
        _visit_outputs(model, images, _norms(model), None, show)
    elif is_hugging_face(model) and not hasattr(inner_model(model), "blocks"):
        _visit_hidden_states(model, images, show)
    else:
        blocks = _blocks(model)
        _visit_outputs(model, images, blocks, blocks[0], show)


def _visit_outputs(
    model: Model,
    images: Tensor,
    layers: Sequence[nn.Module],
    first: nn.Module | None,
    show: Callable[[int, Any], None],
) -> None:
    """Outputs of `layers` as they come, and the input of `first` as depth 0."""
    depth = 0

    def seen(_: nn.Module, __: Any, output: Any) -> None:
        nonlocal depth
        depth += 1
        show(depth, output)

    with ExitStack() as hooks, looking(model, images):
        for layer in layers:  # a function hides the modules it calls
            hooks.enter_context(evaluating(layer))
        if first is not None:
            handle = first.register_forward_pre_hook(
                lambda _, inputs: None if depth else show(0, inputs[0])
            )
            hooks.callback(handle.remove)
        for layer in dict.fromkeys(layers):  # a layer used twice is seen twice
            hooks.callback(layer.register_forward_hook(seen).remove)
        call(model, images)
    if not depth:
        raise InputError("none of the layers ran; give modules that the model calls")


def _visit_values(model: Model, images: Tensor, show: Callable[[int, Any], None]) -> None:
    depth = 0

    def visit(found: AttentionCall) -> None:
        nonlocal depth
        depth += 1
        if found.value is None:
            raise InputError(
                "values are read from scaled_dot_product_attention, which this model does not "
                'call; load it with attn_implementation="sdpa"'
            )
        show(depth, found.value.transpose(1, 2).flatten(2))  # (B, N, H D)

    visit_attention(model, images, visit)


def _visit_hidden_states(model: Model, images: Tensor, show: Callable[[int, Any], None]) -> None:
    with looking(model, images):
        hidden = getattr(call(model, images, output_hidden_states=True), "hidden_states", None)
    if not hidden:
        raise InputError(
            f"{type(inner_model(model)).__name__} gives no hidden_states; name its layers with "
            "layers="
        )
    for depth, tokens in enumerate(hidden):
        show(depth, tokens)


def _blocks(model: Model) -> list[nn.Module]:
    blocks = getattr(inner_model(model), "blocks", None)
    if not isinstance(blocks, nn.ModuleList | nn.Sequential) or not len(blocks):
        raise InputError(
            f"tokens are read from a PIDVisionTransformer, a timm vision transformer or a Hugging "
            f"Face model; for {type(inner_model(model)).__name__} give the modules whose outputs "
            "are the tokens: layers=[...]"
        )
    return list(blocks)


def _norms(model: Model) -> list[nn.Module]:
    """What normalises each block's output: norm1 of the next block, then the last norm."""
    inner = inner_model(model)
    blocks = [] if is_hugging_face(model) else _blocks(model)
    if not all(isinstance(block, Block | PIDBlock) for block in blocks) or not blocks:
        raise InputError(
            f"of='norm' needs pre-norm blocks of timm or ours; for {type(inner).__name__} give "
            "the norms themselves: layers=[...]"
        )
    return [*(block.norm1 for block in blocks[1:]), inner.norm]


def _prefix(model: Model, prefix: int | None) -> int:
    known = getattr(inner_model(model), "num_prefix_tokens", None) if prefix is None else prefix
    if known is None:
        raise InputError(
            f"{type(inner_model(model)).__name__} does not say how many tokens are no patches; "
            'give prefix= (1 for a class token) with tokens="patch"'
        )
    return int(known)
