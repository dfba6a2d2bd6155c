"""Noise in the context of a language model: what it reads is disturbed, what it must say is not."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch

from pidformer.data.noise import indexed_keys, random_bits, uniform_noise
from pidformer.data.text.tokenizers import Tokenizer
from pidformer.errors import InputError, check_known

Kind = Literal["characters", "swaps", "drops"]
PERTURBATIONS: dict[str, tuple[float, ...]] = {
    "characters": (0.01, 0.02, 0.05, 0.10, 0.20),
    "swaps": (0.02, 0.05, 0.10, 0.20, 0.40),
    "drops": (0.02, 0.05, 0.10, 0.20, 0.40),
}
"""Rates at strengths 1 to 5: of characters changed (see `_misspelt`), tokens swapped, left out."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class Perturbation:
    """One kind of noise at a strength of 1 to 5, or at a rate of its own."""

    kind: Kind
    strength: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        check_known("perturbation", self.kind, get_args(Kind))
        if self.strength not in range(1, 6):
            raise InputError(f"strength must be 1 to 5, got {self.strength}")

    @property
    def rate(self) -> float:
        return PERTURBATIONS[self.kind][self.strength - 1]


class Disturbed(NamedTuple):
    """What the model reads, and the token to predict at each place (-100: not scored)."""

    inputs: np.ndarray
    targets: np.ndarray


def perturb(tokens: np.ndarray, noise: Perturbation | None, tokenizer: Tokenizer) -> Disturbed:
    """Inputs and targets of a text, its context disturbed.

    Place j reads token j as noise left it and predicts the true token j + 1. A token that was left
    out predicts nothing, so drops score fewer targets; the pieces of a token that noise broke into
    several predict nothing but for the last. Each token's fate is a function of (seed, place).
    """
    tokens = np.asarray(tokens, dtype=np.int64)
    inputs, targets = tokens[:-1], tokens[1:]
    if noise is None or not len(inputs):
        return Disturbed(inputs, targets)
    if noise.kind == "drops":
        kept = _uniform(noise, len(inputs)) >= noise.rate
        kept[0] = True
        return Disturbed(inputs[kept], targets[kept])
    if noise.kind == "swaps":
        return Disturbed(_swapped(inputs, noise), targets)
    return _misspelt(inputs, targets, noise, tokenizer)


def _uniform(noise: Perturbation, count: int) -> np.ndarray:
    return uniform_noise(_keys(noise, count), 1)[:, 0].numpy()


def _keys(noise: Perturbation, count: int) -> torch.Tensor:
    kind = get_args(Kind).index(noise.kind)
    return indexed_keys(noise.seed & 0x7FFFFFFF, kind + 1, torch.arange(count))


def _swapped(inputs: np.ndarray, noise: Perturbation) -> np.ndarray:
    """Pairs (j, j + 1) change places; a token moves once at most.

    A swap touches two tokens, so its chance is half the rate. The token read at the end of a pair
    is the one before in the text; its target stays the true next token.
    """
    chosen = _uniform(noise, len(inputs)) < noise.rate / 2
    chosen[-1] = False
    out = inputs.copy()
    for place in np.flatnonzero(chosen):
        if place and chosen[place - 1]:
            chosen[place] = False
            continue
        out[place], out[place + 1] = inputs[place + 1], inputs[place]
    return out


def _misspelt(
    inputs: np.ndarray, targets: np.ndarray, noise: Perturbation, tokenizer: Tokenizer
) -> Disturbed:
    """A token of n letters or digits is left alone with the chance (1 - rate)^n.

    In one that is not, a letter drawn evenly becomes another, and each further one with the rate's
    chance. So a few more letters change than the rate says: of a novel's letters, as words, 1.05,
    2.1, 5.5, 11.5 and 23.9 % at strengths 1 to 5.
    """
    known, which = np.unique(inputs, return_inverse=True)
    texts = {number: tokenizer.token_text(number) for number in known.tolist()}
    counts = np.array([sum(map(str.isalnum, text)) for text in texts.values()])[which]
    hit = _uniform(noise, len(inputs)) < 1 - (1 - noise.rate) ** counts
    hit &= inputs != (tokenizer.eos_id if tokenizer.eos_id is not None else -1)
    places = np.flatnonzero(hit)
    keys = _keys(noise, len(inputs))[torch.from_numpy(places)]
    words = random_bits(keys + 1, 64).numpy()
    pieces: list[list[int]] = []
    for place, bits in zip(places.tolist(), words, strict=True):
        text = _changed(texts[int(inputs[place])], noise.rate, bits)
        pieces.append(tokenizer.encode_token(text) or [int(inputs[place])])
    lengths = np.ones(len(inputs), dtype=np.int64)
    lengths[places] = [len(piece) for piece in pieces]
    read = np.repeat(inputs, lengths)
    ends = np.cumsum(lengths)
    for place, piece in zip(places.tolist(), pieces, strict=True):
        read[ends[place] - len(piece) : ends[place]] = piece
    wanted = np.full(len(read), _IGNORED, dtype=np.int64)
    wanted[ends - 1] = targets
    return Disturbed(read, wanted)


def _changed(text: str, rate: float, bits: np.ndarray) -> str:
    """Change at least one letter, each further one with the chance `rate`."""
    letters = [k for k, sign in enumerate(text) if sign.isalnum()]
    first = letters[int(bits[0]) % len(letters)]
    out = list(text)
    for number, k in enumerate(letters):
        word = int(bits[1 + number % (len(bits) - 1)])
        if k == first or (word >> 8) / 2**24 < rate:
            letter = _LETTERS[word % 26]
            same = out[k].lower() == letter
            out[k] = _LETTERS[(word + 1) % 26] if same else letter
    return "".join(out)
