"""The causal language model as Hugging Face knows models: loads, saves, trains, generates."""
# B batch, N tokens, C width, V vocabulary

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from pidformer.errors import InputError
from pidformer.models.gains import ModelGains
from pidformer.models.language.block import PIDDecoderBlock, build_norm, dropped
from pidformer.models.language.config import PIDformerConfig
from pidformer.models.language.masks import cached_tokens, causal_mask, choose_mask, fixed_size
from pidformer.models.language.positions import (
    Rotation,
    counted_down,
    rotation,
    sinusoids,
    token_positions,
)
from pidformer.models.language.softmax import IGNORED, AdaptiveSoftmax, FullSoftmax
from pidformer.models.vit import learned_layers
from pidformer.nn.depth import scan_blocks
from pidformer.nn.gains import LearnedGains


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
        for name, parameter in module.named_parameters(recurse=False):
            if "bias" in name:
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, float(is_norm), norm_std if is_norm else std)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """timm's name for `gradient_checkpointing_enable`, which the training loop uses."""
        for module in self.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = enable

    @property
    def gains(self) -> ModelGains:
        """The gains the model was made with: for all layers, one a layer, or None."""
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
        is_learned = learned_layers(
            config.by_layer,
            config.learn_gains,
            config.first_layer,  # type: ignore[arg-type]
        )
        self.layers = nn.ModuleList(
            PIDDecoderBlock(
                config,
                depth,
                LearnedGains(gains, config.num_key_value_heads)
                if gains is not None and is_learned[depth]
                else gains,
            )
            for depth, gains in enumerate(config.by_layer)
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
        **_: Any,
    ) -> BaseModelOutputWithPast:
        """Hidden states (B, N, C) of tokens (B, N); positions are counted from 0 upwards.

        `last` asks for those of the last tokens alone, which spares the last layer the others.

        With a cache, tokens stand behind what it holds. Without `position_ids`, positions are
        counted from the first token that `attention_mask` does not hide.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("give input_ids or inputs_embeds, one of them")
        use_cache = self._checked_cache(past_key_values, use_cache)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        tokens = x[..., 0]  # (B, N), for shape and device
        past = cached_tokens(past_key_values)
        if position_ids is None:
            position_ids = token_positions(attention_mask, past, tokens)
        x, turned = self._placed(x, position_ids)

        keep_states = _asked(output_hidden_states, self.config, "output_hidden_states")
        states: list[Tensor] = [x] if keep_states else []
        keep_kernels = _asked(output_attentions, self.config, "output_attentions")
        kernels: list[Tensor] | None = [] if keep_kernels else None
        places = None
        if past_key_values is not None:
            places = torch.arange(tokens.shape[1], device=x.device) + past
        options: dict[str, Any] = {
            "checkpointing": self.gradient_checkpointing and self.training,
            "observe": (lambda depth, x, state: states.append(x)) if keep_states else None,
            "mask": choose_mask(attention_mask, past_key_values, tokens),
            "rotation": turned,
            "cache": past_key_values,
            "places": places,
            "kernels": kernels,
        }
        is_seen_whole = past_key_values is not None or keep_states or keep_kernels
        if last is None or last >= tokens.shape[1] or is_seen_whole:
            x, _state = scan_blocks(self.layers, x, **options)
        else:
            blocks = list(self.layers)
            x, state = scan_blocks(blocks[:-1], x, **options)
            x, _state = scan_blocks(blocks[-1:], x, state, last=last, **options)
        return BaseModelOutputWithPast(
            last_hidden_state=dropped(self.dropout, self.norm(x)),
            past_key_values=past_key_values,
            hidden_states=tuple(states) or None,
            attentions=tuple(kernels) if kernels else None,
        )

    def _placed(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Rotation | None]:
        """Embeddings with their positions in them, and the rotation where positions turn."""
        config, turned = self.config, None
        if config.scale_embedding:
            x = x * math.sqrt(config.hidden_size)
        if config.position_type == "rope":
            turned = rotation(position_ids, config.head_dim, config.rope_theta)
        elif config.position_type == "sinusoidal":
            if config.position_order == "descending":
                position_ids = counted_down(position_ids)
            x = x + sinusoids(position_ids, config.hidden_size).to(x.dtype)
        elif self.embed_positions is not None:
            self._check_length(position_ids)
            x = x + self.embed_positions(position_ids)
        return dropped(self.dropout, x), turned

    def _checked_cache(self, cache: Any, use_cache: bool | None) -> bool:
        """Whether to keep keys and values; refused where they would not stay true."""
        if self.config.position_order == "ascending":
            if use_cache is None:
                return self.config.use_cache and not self.training
            return use_cache and not (self.gradient_checkpointing and self.training)
        if cache is not None:
            raise InputError(
                "a model with position_order='descending' cannot use a key/value cache: each new "
                "token moves the positions of all before it; generate with use_cache=False"
            )
        return False

    def _check_length(self, position_ids: Tensor) -> None:
        most = self.config.max_position_embeddings
        if not torch.compiler.is_compiling() and int(position_ids.max()) >= most:
            raise InputError(
                f"{int(position_ids.max()) + 1} tokens are more than the {most} positions that the "
                "model has learned; shorten the prompt, or generate fewer tokens"
            )


class PIDformerForCausalLM(PIDformerPreTrainedModel, GenerationMixin):
    """A language model: tokens to logits of the next token, and their loss."""

    def __init__(self, config: PIDformerConfig) -> None:
        super().__init__(config)
        self.model = PIDformerModel(config)
        is_tied = config.tie_word_embeddings
        size, width = config.vocab_size, config.hidden_size
        self.head: FullSoftmax | AdaptiveSoftmax = (
            AdaptiveSoftmax(size, width, config.cutoffs, is_tied=is_tied)
            if config.cutoffs
            else FullSoftmax(size, width, bias=config.output_bias, is_tied=is_tied)
        )
        self.post_init()
        if self.generation_config is not None:
            self.generation_config.use_cache = config.use_cache

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        targets: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        reduction: str = "mean",
        **options: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits (B, N, V), or the loss alone.

        `labels` are Hugging Face's: the tokens themselves, moved by one inside. `targets` (B, K)
        are the tokens to predict at the last K places, and only those are projected. -100 counts
        nowhere in either. With `targets`, and with `labels` while training an adaptive softmax, no
        logits are made; `reduction="none"` gives the loss of each target.
        """
        if targets is not None and past_key_values is None:
            use_cache = False
        out = self.model(
            input_ids,
            attention_mask,
            position_ids,
            past_key_values,
            inputs_embeds,
            use_cache,
            output_hidden_states,
            output_attentions,
            last=None if targets is None else targets.shape[1],
            **options,
        )
        hidden = out.last_hidden_state
        if labels is not None and targets is None:
            targets = torch.full_like(labels, IGNORED)
            targets[:, :-1] = labels[:, 1:]
            is_loss_all = self.training and isinstance(self.head, AdaptiveSoftmax)
        else:
            is_loss_all = targets is not None
        loss = None
        if targets is not None:
            loss = self.nll(hidden[:, -targets.shape[1] :], targets)
            if reduction == "mean":
                counted = (targets != IGNORED).sum()
                loss = loss.sum() / (counted if num_items_in_batch is None else num_items_in_batch)
        logits = None
        if not is_loss_all:
            kept = (
                slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            )
            logits = self.head(hidden[:, kept], self.model.embed_tokens.weight)
        found = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=out.past_key_values,
            hidden_states=out.hidden_states,
            attentions=out.attentions,
        )
        wants_dict = (
            getattr(self.config, "return_dict", True) if return_dict is None else return_dict
        )
        return found if wants_dict else found.to_tuple()

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """-log p(target) for hidden states (..., C) and targets (...), in float32."""
        flat = self.head.nll(
            hidden.flatten(0, -2), targets.flatten().long(), self.model.embed_tokens.weight
        )
        return flat.view(targets.shape)

    def get_output_embeddings(self) -> None:
        """None: the output reads the embedding table, or holds its own inside `head`."""
        return None

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *_: Any, **__: Any) -> Any:
        """Refused: words stand in the table by frequency, and clusters and biases with them."""
        if new_num_tokens in (None, self.config.vocab_size):
            return self.get_input_embeddings()
        raise InputError(
            f"the vocabulary of {self.config.vocab_size} words is part of the model and cannot "
            f"become {new_num_tokens}; train a model with the other vocabulary"
        )

    @staticmethod
    def create_masks_for_generate(
        attention_mask: Tensor | None = None, past_key_values: Any = None, **given: Any
    ) -> Tensor | None:
        """The mask of a step with a cache of fixed size: always one shape, so it compiles once."""
        size = fixed_size(past_key_values)
        embeds = given.get("inputs_embeds", given.get("input_embeds"))
        if (
            size is None
            or embeds is None
            or (attention_mask is not None and attention_mask.ndim > 2)
        ):
            return attention_mask
        past, queries = cached_tokens(past_key_values), embeds.shape[1]
        return causal_mask(attention_mask, past, queries, size, embeds.device)


def _asked(given: bool | None, config: Any, name: str) -> bool:
    return bool(getattr(config, name, False) if given is None else given)
