"""Tokens to hidden states, as Hugging Face knows models."""
# B batch, N tokens, C width

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, ModelOutput

from pidformer.control.pid import PIDState, first_state
from pidformer.errors import InputError, unknown
from pidformer.models.gains import ModelGains, learned_layers
from pidformer.models.language import positions
from pidformer.models.language.block import PIDDecoderBlock, build_norm, dropped
from pidformer.models.language.config import PIDformerConfig
from pidformer.models.language.masks import cached_tokens, choose_mask
from pidformer.models.language.softmax import AdaptiveSoftmax, FullSoftmax
from pidformer.nn.depth import scan_blocks
from pidformer.nn.gains import LearnedGains, learned_gains

WITHOUT_EFFECT = ("cache_position", "token_type_ids")
"""Tokens stand behind what the cache holds, and there is one type of token."""
PACKING = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
"""What flash attention is told of packed documents; `position_ids` tell the same."""


class PIDformerPreTrainedModel(PreTrainedModel):
    """What the models below share with Hugging Face."""

    config_class = PIDformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["PIDDecoderBlock"]
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values"]
    _supports_sdpa = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Weights N(0, initializer_range), biases 0, norms N(1, norm_initializer_range).

        Through torch.nn.init only: that is what a loader guards for weights it has read.
        """
        std, norm_std = self.config.initializer_range, self.config.norm_initializer_range
        if isinstance(module, LearnedGains):
            module.reset_parameters()
            return
        is_norm = isinstance(module, nn.LayerNorm | nn.RMSNorm)
        is_head = isinstance(module, FullSoftmax | AdaptiveSoftmax)
        for name, parameter in module.named_parameters(recurse=False):
            if is_head and name == "weight" and self.config.tie_word_embeddings:
                continue  # drawn as the embedding's
            if "bias" in name:
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, float(is_norm), norm_std if is_norm else std)

    def _set_gradient_checkpointing(
        self, enable: bool = True, gradient_checkpointing_func: Any = checkpoint, **options: Any
    ) -> None:
        """Hugging Face's switch; layers keep their own function, which is never reentrant."""
        function = getattr(gradient_checkpointing_func, "func", gradient_checkpointing_func)
        if function is not checkpoint:
            raise InputError(
                "the layers of this model recompute in their own way, which keeps the controller's "
                "gradients; leave out offload=True and other functions for checkpointing"
            )
        super()._set_gradient_checkpointing(enable, gradient_checkpointing_func, **options)
        for module in self.modules():
            if isinstance(module, PIDDecoderBlock):
                del module._gradient_checkpointing_func  # theirs, which hid the class's

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """timm's name for `gradient_checkpointing_enable`, which the training loop uses."""
        self._set_gradient_checkpointing(enable)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, *args: Any, **options: Any
    ) -> Any:
        """Another number of words; refused where they stand in clusters by frequency."""
        size = self.config.vocab_size
        if _is_embedded(self.config):
            raise InputError("the words of value_embedding cannot become more or fewer")
        if self.config.cutoffs is None:
            return super().resize_token_embeddings(new_num_tokens, *args, **options)
        if new_num_tokens in (None, size) and not args and not options.get("pad_to_multiple_of"):
            return self.get_input_embeddings()
        raise InputError(
            f"the {size} words of an adaptive softmax stand in clusters (cutoffs "
            f"{self.config.cutoffs}) and cannot become {new_num_tokens}; train a model with the "
            "other vocabulary, or with cutoffs=None"
        )

    def _given_back(self, found: ModelOutput, return_dict: bool | None) -> Any:
        """An output by name, or as a tuple where the caller or the configuration wants one."""
        if return_dict is None:
            return_dict = getattr(self.config, "return_dict", True)
        return found if return_dict else found.to_tuple()

    @property
    def blocks(self) -> nn.ModuleList:
        """The layers, by timm's name: their outputs are the residual stream that analysis reads."""
        return self.base_model.layers

    @property
    def gains(self) -> ModelGains:
        """The gains the model was made with: for all layers, one per layer, or None."""
        return self.config.model_gains


class PIDformerModel(PIDformerPreTrainedModel):
    """Tokens to hidden states."""

    def __init__(self, config: PIDformerConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = (
            nn.Embedding(config.max_position_embeddings, config.hidden_size)
            if config.position_type == "learned"
            else None
        )
        heads = config.num_key_value_heads
        width = heads * config.head_dim
        self.embed_values = nn.Embedding(config.vocab_size, width) if _is_embedded(config) else None
        learned = learned_layers(config.by_layer, config.learn_gains, config.first_layer)
        layers = enumerate(zip(config.by_layer, learned, strict=True))
        self.layers = nn.ModuleList(
            PIDDecoderBlock(config, depth, learned_gains(gains, heads) if is_learned else gains)
            for depth, (gains, is_learned) in layers
        )
        self.norm = build_norm(config) if config.norm_order == "pre" else nn.Identity()
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.gradient_checkpointing = False
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        last: int | None = None,
        return_dict: bool | None = None,
        **options: Any,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        """Hidden states (B, N, C) of tokens (B, N); positions are counted from 0 upwards.

        `last` asks for those of the last tokens alone, which spares the last layer the others.

        With a cache, tokens stand behind what it holds. Without `position_ids`, positions are
        counted from the first token that `attention_mask` does not hide. Where `position_ids`
        restart, and no mask is given, another document begins, which sees nothing of those before.
        """
        check_keywords(type(self).forward, options, has_positions=position_ids is not None)
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("give input_ids or inputs_embeds, one of them")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        tokens = x[..., 0]  # (B, N), for shape and device
        is_told = attention_mask is not None or position_ids is not None or last is not None
        documents = None
        if position_ids is not None and attention_mask is None and tokens.shape[1] > 1:
            # A compiler cannot see whether positions restart; with a cache, one text goes on.
            is_cached = past_key_values is not None or bool(use_cache)
            if not (is_cached and torch.compiler.is_compiling()):
                documents = positions.packed_documents(position_ids)
        use_cache = self._checked_cache(past_key_values, use_cache, documents is not None)
        self._check_rows(tokens, is_told)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        past = cached_tokens(past_key_values)
        if position_ids is None:
            position_ids = positions.token_positions(attention_mask, past, tokens)
        x, turned = self._placed(x, position_ids, documents)

        keep_states = _asked(output_hidden_states, self.config, "output_hidden_states")
        states: list[Tensor] = [x] if keep_states else []
        keep_kernels = _asked(output_attentions, self.config, "output_attentions")
        kernels: list[Tensor] = []
        places = None
        if past_key_values is not None:
            places = torch.arange(tokens.shape[1], device=x.device) + past
        is_seen_whole = past_key_values is not None or keep_states or keep_kernels
        blocks = list(self.layers)[: self.config.num_hidden_layers]  # fewer, for an early exit
        steps: list[Any] = list(blocks)
        if last is not None and last < tokens.shape[1] and not is_seen_whole:
            steps[-1] = partial(blocks[-1], last=last)
        x, _state = scan_blocks(
            steps,
            x,
            self._reference(input_ids),
            observe=(lambda depth, x, state: states.append(x)) if keep_states else None,
            network=blocks,
            mask=choose_mask(
                attention_mask, past_key_values, tokens, documents, self.config.sliding_window
            ),
            rotation=turned,
            cache=past_key_values,
            places=places,
            keep_kernel=kernels.append if keep_kernels else None,  # a list would be copied by hooks
        )
        x = dropped(self.dropout, self.norm(x))
        found = BaseModelOutputWithPast(
            last_hidden_state=x,
            past_key_values=past_key_values,
            hidden_states=(*states[:-1], x) if states else None,
            attentions=tuple(kernels) if kernels else None,
        )
        return self._given_back(found, return_dict)

    def _reference(self, input_ids: Tensor | None) -> PIDState | None:
        """A learned reference, (B, Hkv, N, D), looked up by word; None where the first layer's
        values are it."""
        if self.embed_values is None:
            return None
        if input_ids is None:
            raise InputError("value_embedding looks its reference up by word: give input_ids")
        found = self.embed_values(input_ids).unflatten(-1, (-1, self.config.head_dim))
        return first_state(found.transpose(1, 2))

    def _placed(
        self, x: Tensor, position_ids: Tensor, documents: Tensor | None
    ) -> tuple[Tensor, positions.Rotation | None]:
        """Embeddings with their positions in them, and the rotation where positions turn."""
        config, turned = self.config, None
        if config.scale_embedding:
            x = x * math.sqrt(config.hidden_size)
        if config.position_type == "rope":
            turned = positions.rotation(position_ids, config.head_dim, config.rope_theta)
        elif config.position_type == "sinusoidal":
            if config.position_order == "descending":
                position_ids = positions.counted_down(position_ids, documents)
            x = x + positions.sinusoids(position_ids, config.hidden_size).to(x.dtype)
        elif self.embed_positions is not None:
            self._check_length(position_ids)
            x = x + self.embed_positions(position_ids)
        return dropped(self.dropout, x), turned

    def _checked_cache(self, cache: Any, use_cache: bool | None, is_packed: bool) -> bool:
        """Whether to keep keys and values; refused where they would not stay true."""
        if self.config.position_order == "descending":
            if cache is not None:
                raise InputError(
                    "a model with position_order='descending' cannot use a key/value cache: each "
                    "new token moves the positions of all before it; generate with use_cache=False"
                )
            return False
        if is_packed and (cache is not None or use_cache):
            raise InputError(
                "packed documents (position_ids that restart) cannot go on from a cache, which "
                "does not tell one from another; call with use_cache=False"
            )
        if use_cache is None:
            return self.config.use_cache and not self.training and not is_packed
        return use_cache and not (self.gradient_checkpointing and self.training)

    def _check_rows(self, tokens: Tensor, is_told: bool) -> None:
        """Refuse a batch of which it is not said where its rows end, if positions hang on that."""
        if is_told or self.config.position_order == "ascending":
            return
        if tokens.shape[0] > 1:
            raise InputError(
                f"{tokens.shape[0]} rows without attention_mask: positions count down to the last "
                "token of a row (position_order='descending'), and padding on the right would move "
                "them; give attention_mask, ones where nothing is padded, or one row at a time"
            )

    def _check_length(self, position_ids: Tensor) -> None:
        most = self.config.max_position_embeddings
        if not torch.compiler.is_compiling() and int(position_ids.max()) >= most:
            raise InputError(
                f"{int(position_ids.max()) + 1} tokens are more than the {most} positions that the "
                "model has learned; shorten the prompt, or generate fewer tokens"
            )


def _is_embedded(config: PIDformerConfig) -> bool:
    """Whether the reference is a learned embedding."""
    return any(getattr(layer, "embedded", 0) for layer in config.by_layer)


def _asked(given: bool | None, config: Any, name: str) -> bool:
    return bool(getattr(config, name, False) if given is None else given)


def check_keywords(
    forward: Callable[..., Any], given: Mapping[str, Any], *, has_positions: bool
) -> None:
    """Refuse keywords that would change the numbers of another model and not ours."""
    for name, value in given.items():
        if name in WITHOUT_EFFECT:
            continue
        if name in PACKING:
            if value is not None and not has_positions:
                raise InputError(
                    f"{name} needs position_ids, which restart at 0 with each packed document; "
                    "DataCollatorWithFlattening gives both"
                )
        elif name == "is_causal":
            if value is False:
                raise InputError("is_causal must be True: a causal model sees no later token")
        else:
            known = {*inspect.signature(forward).parameters, "is_causal"} - {"self", "options"}
            raise unknown("keyword", name, known | {*WITHOUT_EFFECT, *PACKING})
