"""The language task: contiguous streams of text, next-token loss, perplexity."""
# n tokens to predict, B windows, W window, S stride

import inspect
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pidformer.data.text import TextBatch, TextStreams, open_corpus, text_tokenizer
from pidformer.errors import InputError
from pidformer.files import named_data
from pidformer.models.language.softmax import AdaptiveSoftmax
from pidformer.runs.recipe import Recipe, TextRecipe
from pidformer.training.tasks import Place, Task

EVAL_TOKENS = 16384
"""Tokens in a batch of an evaluation during training."""
ROUNDED = 64
"""Rows of a cluster come in multiples of it, as tensor cores like them."""


class Language(Task):
    """Next-token prediction; validation in independent segments of the training length."""

    headline = "ppl"
    is_lower_better = True

    def __init__(self, recipe: Recipe, data: str | Path | None) -> None:
        import transformers  # noqa: F401  the extra `lm`: asked for before the text is read

        data = named_data(data, f"this recipe trains on {recipe.data.name}")
        text = recipe.text or TextRecipe()
        self.recipe, self.text, self.location = recipe, text, data
        self.unit = ("tokens", text.length)
        self.tokenizer = text_tokenizer(
            data,
            text.tokenizer,
            split=text.split,
            min_count=text.min_count,
            max_words=text.max_words,
            cache=text.cache,
        )
        if self.tokenizer.size <= 2 and text.tokenizer == "words":
            raise InputError(
                f"no word of {data} occurs {text.min_count} times; lower text.min_count"
            )
        self.valid = open_corpus(data, "valid", self.tokenizer, cache=text.cache)
        if len(self.valid.tokens) < 2:
            raise InputError(f"the validation text at {data} has fewer than two tokens")
        self._eval_tokens: tuple[Tensor, Tensor] | None = None
        self._streams: TextStreams | None = None
        self._most_rare: list[int] | None = None

    def build(self) -> nn.Module:
        """The network, and on a CUDA device what its softmax is promised of each batch."""
        model: Any = super().build()
        if self._streams is not None and isinstance(model.lm_head, AdaptiveSoftmax):
            counts = [self._streams.most_between(*tail) for tail in model.lm_head.tails()]
            self._most_rare = [-(-count // ROUNDED) * ROUNDED for count in counts]
        return model

    def model_info(self) -> dict[str, Any]:
        build = {
            "vocab_size": self.tokenizer.size,
            "length": self.text.length,
            "eos_token_id": self.tokenizer.eos_id,
        }
        return {"build": build, "tokenizer": self.tokenizer.to_dict()}

    def train_data(self, place: Place) -> TextStreams:
        text = self.text
        corpus = open_corpus(self.location, "train", self.tokenizer, cache=text.cache)
        streams = TextStreams(
            corpus.tokens,
            batch_size=self.recipe.data.batch_size,
            length=text.length,
            seed=self.recipe.seed,
            shift=text.shift,
            rank=place.rank,
            world_size=place.world_size,
            device=place.device,
        )
        if place.device.type == "cuda":  # others are not waited for
            self._streams = streams
        return streams

    def loss(self, model: nn.Module, batch: TextBatch) -> Tensor:
        given = {} if self._most_rare is None else {"most_rare": self._most_rare}
        return model(input_ids=batch.inputs, targets=batch.targets, **given).loss

    def count(self, model: nn.Module, place: Place) -> Tensor:
        """(summed loss, targets)."""
        if self._eval_tokens is None:
            tokens = torch.from_numpy(self.valid.tokens.astype(np.int64)).to(place.device)
            self._eval_tokens = tokens[:-1], tokens[1:]
        length = self.text.length
        losses = window_nll(
            model,
            *self._eval_tokens,
            window=length,
            stride=length,
            batch_size=max(1, EVAL_TOKENS // length),
            rank=place.rank,
            world_size=place.world_size,
        )
        scored = losses[~losses.isnan()]
        return torch.stack([scored.sum(), scored.new_tensor(float(len(scored)))])

    def scores(self, counts: Tensor) -> dict[str, float]:
        total, targets = counts.tolist()
        loss = total / targets
        per_character = len(self.valid.tokens) / self.valid.characters / math.log(2)
        return {
            "loss": loss,
            "ppl": math.exp(min(loss, 700.0)),
            "bits_per_character": loss * per_character,
            "tokens": targets,
        }


def window_nll(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    window: int,
    stride: int,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
) -> Tensor:
    """-log p(target) of each of n targets, float64 (n,); NaN where the target is -100, and
    infinite where the model gives no number.

    Windows of W inputs begin at 0, S, 2S, ...; the first scores all its targets, each further one
    its last S, so every target is scored once, with W - S to W - 1 tokens before its own input.
    S = 1 is the sliding window of the paper, S = W gives independent segments. What is left at the
    end is scored by the window that ends there; of segments, by a shorter one.

    Windows go through the model `batch_size` at a time, and only scored places are projected.
    Process `rank` of `world_size` does every world_size-th batch; the others' places are NaN.
    """
    count = len(inputs)
    found = torch.full((count,), torch.nan, dtype=torch.float64, device=inputs.device)

    def score(starts: Tensor, size: int, scored: int) -> None:
        places = starts[:, None] + torch.arange(size, device=inputs.device)
        last = places[:, -scored:]
        wanted = targets[last]
        nll = _losses(model, inputs[places], wanted).double()
        nll = nll.masked_fill(nll.isnan(), torch.inf)  # NaN counts as infinite loss, not as missing
        found[last.flatten()] = nll.masked_fill(wanted < 0, torch.nan).flatten()

    first = min(window, count)
    further = (count - first) // stride
    left = count - first - further * stride
    ends: list[tuple[int, int, int]] = [(0, first, first)]  # start, size, scored
    if left:
        size = left if stride >= window else min(window, count)
        ends.append((count - size, size, left))
    starts = torch.arange(1, further + 1, device=inputs.device) * stride + first - window
    for part in starts.split(batch_size)[rank::world_size]:
        score(part, window, stride)
    if rank == 0:
        for start, size, scored in ends:
            score(torch.tensor([start], device=inputs.device), size, scored)
    return found


def _losses(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
    """-log p of the last targets, by our model or a causal one of transformers."""
    takes = inspect.signature(model.forward).parameters
    if "targets" in takes or "logits_to_keep" not in takes:
        return cast(Tensor, model(input_ids=ids, targets=targets, reduction="none").loss)
    if not len(ids):  # a text of one window has no further ones; Llama wants a row
        return targets.float()
    logits = model(ids, logits_to_keep=targets.shape[1], use_cache=False).logits
    flat, wanted = logits.float().flatten(0, 1), targets.flatten()
    return F.cross_entropy(flat, wanted, reduction="none", ignore_index=-100).view_as(targets)
