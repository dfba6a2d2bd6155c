"""The language model's configuration, as Hugging Face keeps it."""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Self

from transformers import PretrainedConfig

from pidformer.control.gains import PIDGains
from pidformer.control.pid import check_first_layer
from pidformer.errors import InputError, check_known, check_multiple, unknown
from pidformer.models.gains import GainsLike, ModelGains, layer_gains, resolve_gains
from pidformer.models.options import CHOICES

PAPER_CUTOFFS = (20000, 40000, 200000)
Gains = GainsLike | Sequence[GainsLike] | None
HUGGING_FACE_OPTIONS = frozenset(PretrainedConfig().to_dict()) | {
    *("model_type", "dtype", "torch_dtype", "attn_implementation", "quantization_config"),
    *("auto_map", "name_or_path", "tokenizer_class", "task_specific_params", "torchscript"),
}
"""What transformers keeps in a configuration by itself, whichever model it is."""


class PIDformerConfig(PretrainedConfig):
    """A causal language model with a controller; `gains=None` is its softmax twin.

    The defaults are a model of today: pre-RMSNorm, rotary positions, SwiGLU, one tied table with
    a full softmax. `PIDformerConfig.paper()` is the paper's: post-LayerNorm, sinusoids that count
    down to the last token, ReLU, adaptive softmax.

    `gains` may be written in every way that models take them (`PIDGains`, "P,I,D,BETA", a preset,
    a mapping, a list by layer); the configuration keeps plain numbers. `cutoffs` splits the
    vocabulary, most frequent words first, for an adaptive softmax. With `sliding_window` W a token
    sees itself and the W - 1 before it; a trained model can be given it when it is loaded.
    """

    model_type = "pidformer"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    def __init__(
        self,
        vocab_size: int = 32000,
        hidden_size: int = 256,
        num_hidden_layers: int = 8,
        num_attention_heads: int = 8,
        num_key_value_heads: int | None = None,
        intermediate_size: int | None = None,
        max_position_embeddings: int = 1024,
        *,
        gains: Gains = None,
        learn_gains: bool = False,
        first_layer: str = "free",
        attention_residual: bool = True,
        cutoffs: Sequence[int] | None = None,
        norm_order: str = "pre",
        norm_type: str = "rms",
        norm_eps: float = 1e-5,
        position_type: str = "rope",
        position_order: str = "ascending",
        rope_theta: float = 10000.0,
        sliding_window: int | None = None,
        mlp_type: str = "swiglu",
        attention_bias: bool = False,
        mlp_bias: bool = False,
        output_bias: bool = False,
        scale_embedding: bool = False,
        hidden_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        initializer_range: float = 0.02,
        norm_initializer_range: float = 0.0,
        use_cache: bool | None = None,
        tie_word_embeddings: bool = True,
        bos_token_id: int | None = None,
        eos_token_id: int | list[int] | None = None,
        pad_token_id: int | None = None,
        **options: Any,
    ) -> None:
        for name in options:
            if name not in HUGGING_FACE_OPTIONS and not name.startswith("_"):
                raise unknown("option", name, option_names())
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        self.intermediate_size = intermediate_size or 4 * hidden_size
        self.max_position_embeddings = max_position_embeddings
        self.gains = plain_gains(gains, num_hidden_layers)
        self.learn_gains = learn_gains
        self.first_layer = first_layer
        self.attention_residual = attention_residual
        self.cutoffs = list(cutoffs) if cutoffs else None
        self.norm_order = norm_order
        self.norm_type = norm_type
        self.norm_eps = norm_eps
        self.position_type = position_type
        self.position_order = position_order
        self.rope_theta = rope_theta
        self.sliding_window = sliding_window
        self.mlp_type = mlp_type
        self.attention_bias = attention_bias
        self.mlp_bias = mlp_bias
        self.output_bias = output_bias
        self.scale_embedding = scale_embedding
        self.hidden_dropout = hidden_dropout
        self.attention_dropout = attention_dropout
        self.initializer_range = initializer_range
        self.norm_initializer_range = norm_initializer_range
        self._check()
        # Positions that count down move with every new token: nothing of the past can be kept.
        self.use_cache = position_order == "ascending" if use_cache is None else use_cache
        tokens = {"bos_token_id": bos_token_id, "eos_token_id": eos_token_id}
        tokens["pad_token_id"] = pad_token_id
        super().__init__(tie_word_embeddings=tie_word_embeddings, **tokens, **options)

    @classmethod
    def paper(cls, vocab_size: int = 267735, **options: Any) -> Self:
        """The paper's WikiText-103 model (lmtool's small one), 44,018,394 parameters.

        16 layers of width 128, 8 heads of 16, FFN 2048, post-LayerNorm, one tied table with an
        adaptive softmax. Cutoffs beyond a smaller vocabulary are left out. Softmax unless `gains`
        are given; the paper's are "lm".
        """
        cutoffs = [cutoff for cutoff in PAPER_CUTOFFS if cutoff < vocab_size]
        architecture: dict[str, Any] = {
            "hidden_size": 128,
            "num_hidden_layers": 16,
            "num_attention_heads": 8,
            "intermediate_size": 2048,
            "max_position_embeddings": 256,
            "cutoffs": cutoffs or None,
            "norm_order": "post",
            "norm_type": "layer",
            "position_type": "sinusoidal",
            "position_order": "descending",
            "mlp_type": "relu",
            "mlp_bias": True,
            "output_bias": True,
            "scale_embedding": True,
            "hidden_dropout": 0.1,
            "norm_initializer_range": 0.02,
        }
        return cls(vocab_size=vocab_size, **(architecture | options))

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def model_gains(self) -> ModelGains:
        """The controller: one for all layers, one per layer, or None."""
        return resolve_gains(self.gains, self.num_hidden_layers)

    @property
    def by_layer(self) -> tuple[PIDGains | None, ...]:
        return layer_gains(self.model_gains, self.num_hidden_layers)

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any], **options: Any) -> Any:
        """Hugging Face's loader, with a warning when `gains` replaces the trained controller."""
        if "gains" in options:
            depth = options.get("num_hidden_layers", config_dict["num_hidden_layers"])
            options["gains"] = plain_gains(options["gains"], depth)
            trained = config_dict.get("gains")
            if options["gains"] != trained:
                warnings.warn(
                    f"the model was trained with gains {trained}, loaded with {options['gains']}",
                    stacklevel=2,
                )
        # A file may hold what other versions and other tools have put there: kept, not refused.
        known = HUGGING_FACE_OPTIONS | set(option_names())
        extra = {k: v for k, v in config_dict.items() if k not in known and k[0] != "_"}
        fields = {name: value for name, value in config_dict.items() if name not in extra}
        found = super().from_dict(fields, **options)
        config = found[0] if isinstance(found, tuple) else found
        for name, value in extra.items():
            if not isinstance(getattr(type(config), name, None), property):
                setattr(config, name, value)
        return found

    def _check(self) -> None:
        for name, allowed in CHOICES.items():
            check_known(name, getattr(self, name), allowed)
        check_first_layer(self.first_layer)
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.sliding_window is not None and self.sliding_window < 2:
            raise InputError(
                f"sliding_window must be >= 2 tokens, or None for all, got {self.sliding_window}"
            )
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        check_multiple("hidden_size", self.hidden_size, "num_attention_heads", heads)
        check_multiple("num_attention_heads", heads, "num_key_value_heads", groups)
        if self.position_type != "learned" and self.head_dim % 2:
            raise InputError(
                f"{self.position_type} positions need an even head size, got {self.head_dim}"
            )
        if self.position_order == "descending" and self.position_type != "sinusoidal":
            raise InputError(
                "position_order='descending' is for sinusoidal positions; "
                f"use 'ascending' with {self.position_type}"
            )
        edges = [0, *(self.cutoffs or []), self.vocab_size]
        if any(low >= high for low, high in pairwise(edges)):
            raise InputError(
                f"cutoffs must rise and stay below vocab_size {self.vocab_size}, got {self.cutoffs}"
            )


def option_names() -> list[str]:
    """The keywords of `PIDformerConfig`."""
    kinds = inspect.signature(PIDformerConfig.__init__).parameters
    return [name for name in kinds if name not in ("self", "options")]


def plain_gains(given: Gains, depth: int) -> Any:
    """Gains as JSON can hold them: a mapping, a list of mappings by layer, or None."""
    gains = resolve_gains(given, depth)
    if isinstance(gains, tuple):
        return [layer.to_dict() for layer in gains]
    return gains.to_dict() if gains is not None else None
