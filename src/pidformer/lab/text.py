"""The Text view as functions: a disturbed prompt, what each of its tokens costs, what follows."""

import shlex
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F

from pidformer.data.text import Perturbation, Tokenizer, perturb
from pidformer.data.text.perturb import Kind
from pidformer.errors import InputError, check_known
from pidformer.lab.knobs import TwoModels, check_sliders
from pidformer.models.language.generate import generate_tokens
from pidformer.runs.model import LanguageModel, load_language

NOISES = get_args(Kind)
MOST_CHARACTERS = 2000
PROMPT = "It was a dark night, and the rain fell upon the windows of the old house. He opened the"


@dataclass(frozen=True, kw_only=True)
class TextKnobs(TwoModels):
    prompt: str = PROMPT
    noise: str = "characters"
    strength: int = 0
    """0 leaves the prompt as it is."""
    tokens: int = 40
    temperature: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        check_known("noise", self.noise, NOISES)
        check_sliders(self, "text")
        if len(self.prompt) > MOST_CHARACTERS:
            raise InputError(f"the prompt has {len(self.prompt)} characters, {MOST_CHARACTERS} fit")

    @property
    def perturbation(self) -> Perturbation | None:
        if self.strength == 0:
            return None
        return Perturbation(kind=self.noise, strength=self.strength, seed=self.seed)  # type: ignore[arg-type]

    def command(self, run: str) -> str:
        """The continuation on the command line, of the prompt without noise."""
        return (
            f"pidformer generate {shlex.quote(run)} --prompt {shlex.quote(self.prompt)} "
            f"--max-tokens {self.tokens} --temperature {self.temperature:g} --seed {self.seed}"
        )

    def python(self, run: str) -> str:
        return (
            "from pidformer.lab.text import TextKnobs, read, opened\n\n"
            f"knobs = {self!r}\n"
            f"found = read(opened({run!r}), knobs)\n"
            "print(found.perplexity, found.continuation)\n"
        )


class Token(NamedTuple):
    """One token that the model read, and the loss of guessing the true one that follows."""

    text: str
    loss: float | None
    """In nats; None for the last token, and where noise left nothing to guess."""
    target: str = ""
    """The true token that was to be guessed."""


class Read(NamedTuple):
    tokens: tuple[Token, ...]
    written: tuple[Token, ...]
    """The continuation; here a token's loss is its own, and `target` is empty."""
    continuation: str

    @property
    def losses(self) -> list[float]:
        return [token.loss for token in self.tokens if token.loss is not None]

    @property
    def perplexity(self) -> float:
        return float(np.exp(np.mean(self.losses))) if self.losses else float("nan")


@lru_cache(maxsize=4)
def opened(run: str) -> LanguageModel:
    """A run's model, kept for the next visitor."""
    return load_language(run)


def read(loaded: LanguageModel, knobs: TextKnobs) -> Read:
    """Losses of the true tokens after a disturbed context, and a continuation of it.

    Place j reads token j as noise left it and guesses the true token j + 1; see
    `pidformer.data.text.perturb`. The last token, which nothing follows, is read as it is.
    """
    model, tokenizer, length = loaded
    tokens = np.array(tokenizer.encode(knobs.prompt)[: length - 1], dtype=np.int64)
    if not len(tokens):
        raise InputError("the prompt has no token; write a few words")
    inputs, targets = perturb(tokens, knobs.perturbation, tokenizer)
    given = np.concatenate([inputs, tokens[-1:]])
    losses: list[float | None] = [None] * len(given)
    if len(inputs):
        with torch.inference_mode():
            logits = model(torch.from_numpy(inputs)[None]).logits[0].float()
        wanted = torch.from_numpy(targets)
        nll = F.cross_entropy(logits, wanted, reduction="none", ignore_index=-100)
        for place, (loss, target) in enumerate(zip(nll.tolist(), targets, strict=True)):
            losses[place] = None if target == -100 else loss
    new = generate_tokens(
        model,
        tokenizer,
        given.tolist(),
        max_tokens=knobs.tokens,
        temperature=knobs.temperature,
        seed=knobs.seed,
    )
    whole = torch.tensor([*given.tolist(), *new])
    with torch.inference_mode():
        logits = model(whole[None, :-1]).logits[0, len(given) - 1 :].float()
    own = F.cross_entropy(logits, whole[len(given) :], reduction="none").tolist()
    pieces = _pieces(tokenizer, whole.tolist())
    guessed = ["" if n < 0 else tokenizer.token_text(n) for n in [*targets.tolist(), -1]]
    return Read(
        tuple(map(Token, pieces, losses, guessed)),
        tuple(map(Token, pieces[len(given) :], own)),
        "".join(pieces[len(given) :]),
    )


def _pieces(tokenizer: Tokenizer, numbers: list[int]) -> list[str]:
    """Each token as it stands in the running text."""
    ends = [len(tokenizer.decode(numbers[:k])) for k in range(len(numbers) + 1)]
    text = tokenizer.decode(numbers)
    return [text[a:b] for a, b in pairwise(ends)]
