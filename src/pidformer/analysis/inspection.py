"""How a foreign model is looked into: in evaluation mode, without gradients, eagerly.

Attention is read from the calls that a model makes while it runs. Every model whose attention goes
through `scaled_dot_product_attention` (ours, timm's, Hugging Face's by default) or through a
softmax over (B, H, N, N) scores (Hugging Face's "eager") is read the same way, with whatever it
does to queries and keys before: norms, rotations, masks, groups.
"""
# B batch, H heads, Hkv key/value heads, N tokens, D head dim

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pidformer.data.arguments import check_counts
from pidformer.errors import InputError
from pidformer.models import PixelModel
from pidformer.nn import evaluating

Model = nn.Module | Callable[..., Any]
"""Something that is called with a batch."""
_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)


def inner_model(model: Model) -> Any:
    """The model inside a `PixelModel` or a compiled one."""
    model = getattr(model, "_orig_mod", model)
    return inner_model(model.model) if isinstance(model, PixelModel) else model


def is_hugging_face(model: Model) -> bool:
    """Whether `model` knows `output_hidden_states`, as the models of transformers do."""
    return hasattr(getattr(inner_model(model), "config", None), "output_hidden_states")


@contextmanager
def looking(model: Model, inputs: Tensor) -> Iterator[None]:
    """Evaluation mode, no gradients, no autocast, no compiled code that would hide the inside."""
    with (
        evaluating(model),
        torch.no_grad(),
        torch.autocast(inputs.device.type, enabled=False),
        torch.compiler.set_stance("force_eager"),
    ):
        yield


def call(model: Model, inputs: Tensor, **options: Any) -> Any:
    """`model(inputs)`; what it asserts about its input becomes one line."""
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, PixelModel):
        return call(model.model, model.normalise(inputs), **options)
    if getattr(getattr(model, "config", None), "position_order", None) == "descending":
        options.setdefault("attention_mask", torch.ones_like(inputs))  # rows are whole: none padded
    try:
        return model(inputs, **options)
    except AssertionError as error:  # how timm and others refuse a size
        shape = tuple(inputs.shape)
        raise InputError(f"{type(model).__name__} refuses a batch {shape}: {error}") from None


def check_inputs(model: Model, inputs: Tensor, batch_size: int = 1) -> None:
    """Refuse an empty batch, and images that do not fit a vision transformer."""
    check_counts(batch_size=batch_size)
    inner = inner_model(model)
    embed = getattr(inner, "patch_embed", None)
    if not isinstance(inputs, Tensor) or inputs.ndim == 0 or not len(inputs):
        raise InputError("images must be a tensor of at least one, got none")
    if embed is None:
        return
    if inputs.ndim != 4 or not inputs.is_floating_point():
        raise InputError(
            "images must be floats (B, channels, height, width), got "
            f"{inputs.dtype} {tuple(inputs.shape)}"
        )
    channels = getattr(getattr(embed, "proj", None), "in_channels", inputs.shape[1])
    size = getattr(embed, "img_size", None)
    if size is None or not getattr(embed, "strict_img_size", True):
        size = inputs.shape[-2:]
    expected = (channels, *size)
    if tuple(inputs.shape[1:]) != expected:
        raise InputError(
            f"images must be (B, {', '.join(map(str, expected))}) for this model, got "
            f"{tuple(inputs.shape)}; sample_images prepares them"
        )


class AttentionCall(NamedTuple):
    """One self-attention: what `scaled_dot_product_attention` is given, or the finished weights."""

    query: Any = None  # (B, H, N, D)
    key: Any = None  # (B, Hkv, N, D)
    value: Tensor | None = None  # (B, Hkv, N, D)
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False
    weights: Any = None  # (B, H, N, N)

    @property
    def seen(self) -> Tensor:
        """The queries or the weights, (B, H, N, ...)."""
        return self.weights if self.query is None else self.query

    def queries_and_keys(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(B, H, N, D) each: keys repeated for the query heads that they serve."""
        q, k = self.query.to(dtype), self.key.to(dtype)
        return q, k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)

    def matrix(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """A = softmax(scale q k^T + mask), (B, H, N, N)."""
        if self.weights is not None:
            return self.weights.to(dtype)
        q, k = self.queries_and_keys(dtype)
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if self.scale is None else self.scale)
        if self.is_causal:
            lower = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
            scores = scores.masked_fill(~lower, -torch.inf)
        if self.attn_mask is not None and self.attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~self.attn_mask, -torch.inf)
        elif self.attn_mask is not None:
            scores = scores + self.attn_mask.to(dtype)
        return scores.softmax(-1)


def visit_attention(model: Model, inputs: Tensor, visit: Callable[[AttentionCall], None]) -> None:
    """Run the model and call `visit` with each self-attention, in the order they happen."""
    check_inputs(model, inputs)
    count = 0

    def check(found: AttentionCall) -> None:
        nonlocal count
        if len(found.seen) != len(inputs):
            raise InputError(
                f"{_name(model)} attends in {len(found.seen) // len(inputs)} windows an image; "
                "only attention over all tokens is read (token_similarity still works)"
            )
        count += 1
        visit(found)

    with looking(model, inputs), _Watch(check):
        call(model, inputs)
    if not count:
        raise InputError(
            f"the attention of {_name(model)} cannot be read: it makes no call to "
            "scaled_dot_product_attention, nor a softmax over (B, H, N, N); load Hugging Face "
            'models with attn_implementation="eager" (token_similarity still works, with layers=)'
        )


class _Watch(TorchFunctionMode):
    """Hands every square attention on; inside the handler the mode is off."""

    def __init__(self, visit: Callable[[AttentionCall], None]) -> None:
        super().__init__()
        self._visit = visit

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            found = AttentionCall(*args, **kwargs)
            if found.query.ndim == 4 and found.query.shape[-2] == found.key.shape[-2]:
                self._visit(found)
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        is_matrix = func in _SOFTMAX and out.ndim == 4 and out.shape[-1] == out.shape[-2]
        if is_matrix and (kwargs["dim"] if "dim" in kwargs else args[1]) in (-1, 3):
            self._visit(AttentionCall(weights=out))
        return out


def _name(model: Model) -> str:
    return type(inner_model(model)).__name__
