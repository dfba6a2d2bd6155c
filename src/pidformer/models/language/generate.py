"""Text from a model, handed out as it is written."""

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from pidformer.data.text import Tokenizer
from pidformer.errors import InputError
from pidformer.fields import check_seed
from pidformer.models.language.causal import PIDformerForCausalLM


class Sampling(TypedDict, total=False):
    """How tokens are drawn, and how many."""

    max_tokens: int
    temperature: float
    """0 takes the likeliest token each time."""
    top_k: int | None
    top_p: float | None
    seed: int


def generate_text(
    model: PIDformerForCausalLM,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    on_text: Callable[[str], None] = lambda text: None,
    **sampling: Unpack[Sampling],
) -> str:
    """Continue `prompt`; defaults are those of `generate_tokens`.

    Lines end where the model ends them, and the text goes on to `max_tokens`. `<unk>` is never
    written. An empty prompt starts at the beginning of a line.
    """
    tokens = tokenizer.encode(prompt) or [tokenizer.eos_id or 0]
    writer = _Writer(tokenizer, len(tokens), on_text)
    generate_tokens(model, tokenizer, tokens, streamer=writer, **sampling)
    return writer.text


def generate_tokens(
    model: PIDformerForCausalLM,
    tokenizer: Tokenizer,
    tokens: list[int],
    *,
    max_tokens: int = 100,
    temperature: float = 0.8,
    top_k: int | None = 50,
    top_p: float | None = None,
    seed: int = 0,
    streamer: Any = None,
) -> list[int]:
    """The same in tokens: those that follow `tokens`, of which there must be one at least."""
    if max_tokens < 1:
        raise InputError(f"max_tokens must be >= 1, got {max_tokens}")
    if temperature != 0 and not 1e-3 <= temperature < math.inf:
        raise InputError(
            f"temperature must be 0 (the likeliest token) or 0.001 and more, got {temperature}"
        )
    if top_k is not None and top_k < 0:
        raise InputError(f"top_k must be >= 0, got {top_k}; 0 draws from all tokens")
    if top_p is not None and not 0 < top_p <= 1:
        raise InputError(f"top_p must be in (0, 1], got {top_p}")
    check_seed(seed)
    config = model.config
    room = config.max_position_embeddings
    if config.position_type == "learned" and len(tokens) + max_tokens > room + 1:
        raise InputError(
            f"a prompt of {len(tokens)} tokens and {max_tokens} more do not fit the {room} "
            "positions that the model has learned; shorten the prompt or lower --max-tokens"
        )
    if len(tokens) + max_tokens > room and (config.sliding_window or math.inf) > room:
        warnings.warn(
            f"the model was trained on {room} tokens at a time, and may write worse after so many",
            stacklevel=2,
        )
    options: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        options = {"do_sample": True, "temperature": temperature, "top_k": top_k or 0}
        options |= {} if top_p is None else {"top_p": top_p}
    banned = tokenizer.unknown_id
    if banned is not None and banned < tokenizer.size:
        options["suppress_tokens"] = [banned]
    torch.manual_seed(seed)
    given = torch.tensor([tokens], device=model.device)
    with _without_reminder():
        found = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=max_tokens,
            eos_token_id=None,
            pad_token_id=tokenizer.eos_id or 0,
            streamer=streamer,
            **options,
        )
    return [int(token) for token in found[0, len(tokens) :]]


@contextmanager
def _without_reminder() -> Iterator[None]:
    """Transformers tells of the trained length when it is reached: in the middle of the text."""
    logger = logging.getLogger("transformers.generation.stopping_criteria")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Writer:
    """Hugging Face's streamer: takes the prompt, then each token, and tells the new text."""

    def __init__(self, tokenizer: Tokenizer, skip: int, on_text: Callable[[str], None]) -> None:
        self._tokenizer, self._skip, self._on_text = tokenizer, skip, on_text
        self._tokens: list[int] = []
        self._shown = 0
        self.text = ""

    def put(self, value: Tensor) -> None:
        self._tokens += value.flatten().tolist()
        self._tell(is_end=False)

    def end(self) -> None:
        self._tell(is_end=True)

    def _tell(self, is_end: bool) -> None:
        before = self._tokenizer.decode(self._tokens[: self._skip])
        whole = self._tokenizer.decode(self._tokens)
        new = whole[len(before) :]
        # A letter may be spread over tokens; wait until it is whole.
        if new.endswith("\ufffd") and not is_end:
            return
        if len(new) > self._shown:
            self._on_text(new[self._shown :])
        self._shown, self.text = max(self._shown, len(new)), new
