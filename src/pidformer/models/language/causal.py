"""The causal language model as Hugging Face knows models: loads, saves, trains, generates."""
# B batch, N tokens, C width, V vocabulary

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from pidformer.errors import InputError
from pidformer.models.language.config import PIDformerConfig
from pidformer.models.language.masks import causal_mask, fixed_size
from pidformer.models.language.model import PIDformerModel, PIDformerPreTrainedModel, check_keywords
from pidformer.models.language.softmax import IGNORED, AdaptiveSoftmax, FullSoftmax, nll

TABLE = "model.embed_tokens.weight"


class PIDformerForCausalLM(PIDformerPreTrainedModel, GenerationMixin):
    """A language model: tokens to logits of the next token, and their loss."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": TABLE}

    def __init__(self, config: PIDformerConfig) -> None:
        super().__init__(config)
        self.model = PIDformerModel(config)
        size, width = config.vocab_size, config.hidden_size
        self.lm_head: FullSoftmax | AdaptiveSoftmax = (
            AdaptiveSoftmax(size, width, config.cutoffs)
            if config.cutoffs
            else FullSoftmax(size, width, bias=config.output_bias)
        )
        self.register_load_state_dict_pre_hook(_take_old_names)
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
        shift_labels: Tensor | None = None,
        targets: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        reduction: str = "mean",
        most_rare: Sequence[int] | None = None,
        **options: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits (B, N, V), or the loss alone.

        `labels` are Hugging Face's: the tokens themselves, moved by one inside; `shift_labels` are
        moved already (by trainers that cut a sequence into shards) and count instead of them.
        `targets` (B, K) are the tokens to predict at the last K places, and only those are
        projected. -100 counts nowhere. With `targets`, and while training an adaptive softmax with
        labels, no logits are made; `reduction="none"` gives the loss of each target. `most_rare` is
        what an adaptive softmax is promised of them (`AdaptiveSoftmax`).
        """
        check_keywords(type(self).forward, options, has_positions=position_ids is not None)
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
            return_dict=True,
            **options,
        )
        hidden = out.last_hidden_state
        is_loss_all = targets is not None
        if targets is None and shift_labels is None and labels is not None:
            shift_labels = torch.full_like(labels, IGNORED)
            shift_labels[:, :-1] = labels[:, 1:]
        if targets is None and shift_labels is not None:
            targets = shift_labels
            is_loss_all = self.training and isinstance(self.lm_head, AdaptiveSoftmax)
        loss = None
        if targets is not None:
            loss = self.nll(hidden[:, -targets.shape[1] :], targets, most_rare)
            if reduction == "mean":
                counted = (targets != IGNORED).sum()
                loss = loss.sum() / (counted if num_items_in_batch is None else num_items_in_batch)
        logits = None
        if not is_loss_all:
            kept = (
                slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            )
            logits = self.lm_head(hidden[:, kept])
        found = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=out.past_key_values,
            hidden_states=out.hidden_states,
            attentions=out.attentions,
        )
        return self._given_back(found, return_dict)

    def nll(
        self, hidden: Tensor, targets: Tensor, most_rare: Sequence[int] | None = None
    ) -> Tensor:
        """-log p(target) for hidden states (..., C) and targets (...), in float32."""
        flat = nll(self.lm_head, hidden.flatten(0, -2), targets.flatten().long(), most_rare)
        return flat.view(targets.shape)

    def generate(self, *args: Any, **options: Any) -> Any:
        """Hugging Face's, without a cache where positions count down, even if one is asked for."""
        if self.config.position_order == "descending":
            if options.get("inputs_embeds") is not None:
                raise InputError(
                    "transformers generates from inputs_embeds with a cache alone, which a model "
                    "with position_order='descending' cannot use; give input_ids"
                )
            if options.get("use_cache"):
                warnings.warn(
                    "position_order='descending' generates without a cache: each new token moves "
                    "the positions of all before it",
                    stacklevel=2,
                )
            options["use_cache"] = False
        kind = options.get("cache_implementation") or ""
        if kind.startswith("offloaded"):
            if not torch.accelerator.is_available():
                raise InputError(
                    f"cache_implementation={kind!r} moves keys and values between an accelerator "
                    "and the CPU, and this machine has no accelerator; leave it out, or use "
                    "'static'"
                )
            # transformers 5.17 compiles a static one, and the compiler of torch 2.11 ends the
            # process at its streams
            options.setdefault("disable_compile", True)
        if kind == "static" and self.config.sliding_window is not None:
            options.setdefault("disable_compile", True)  # its length is a number, and in the graph
        return super().generate(*args, **options)

    def get_output_embeddings(self) -> nn.Module | None:
        """The linear head; None for an adaptive softmax, whose logits no one matrix gives."""
        return None if isinstance(self.lm_head, AdaptiveSoftmax) else self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        if isinstance(self.lm_head, AdaptiveSoftmax):
            raise InputError(
                "the head is an adaptive softmax (cutoffs) and cannot be replaced; make the model "
                "with cutoffs=None"
            )
        self.lm_head = new_embeddings  # type: ignore[assignment]

    def _tie_weights(self) -> None:
        """What transformers 4 leaves untied, since it asks for `get_output_embeddings`."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @classmethod
    def from_pretrained(cls, *args: Any, **options: Any) -> Any:
        """Hugging Face's; files from before the head was called `lm_head` load too."""
        mapping = {"^head\\.": "lm_head."} | (options.pop("key_mapping", None) or {})
        return super().from_pretrained(*args, key_mapping=mapping, **options)

    def up_to_date(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors by the names of today: the head's old one, and a tied table, which is kept once.

        Also those of an optimiser, NAME/STATE.
        """
        found = {
            f"lm_{name}" if name.startswith("head.") else name: tensor
            for name, tensor in weights.items()
        }
        if self.config.tie_word_embeddings and TABLE in found:
            found.setdefault("lm_head.weight", found[TABLE])
        return found

    def create_masks_for_generate(
        self, attention_mask: Tensor | None = None, past_key_values: Any = None, **given: Any
    ) -> Tensor | None:
        """The mask of a step with a cache of fixed size: always one shape, so it compiles once."""
        embeds = given.get("inputs_embeds", given.get("input_embeds"))
        is_made = attention_mask is not None and attention_mask.ndim > 2
        if fixed_size(past_key_values) is None or embeds is None or is_made:
            return attention_mask
        window = self.config.sliding_window
        return causal_mask(attention_mask, past_key_values, embeds.shape[1], embeds.device, window)


def _take_old_names(
    model: PIDformerForCausalLM, weights: dict[str, Tensor], prefix: str, *_: Any
) -> None:
    """What `load_state_dict` calls first."""
    own = {n.removeprefix(prefix): weights.pop(n) for n in list(weights) if n.startswith(prefix)}
    weights.update({f"{prefix}{n}": tensor for n, tensor in model.up_to_date(own).items()})
