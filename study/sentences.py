"""Sentences as vectors: how a network that embeds them is trained, and how near a misspelt one
stays to the sentence it was.

Trained by contrast of neighbours (Neelakantan et al. 2022): of a batch of sentences, each must be
told from the others by its cosine to the sentence that follows it in the text.
"""
# S sentences, B in a batch, N tokens, C width

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pidformer.data.text import Perturbation, open_corpus, perturb
from pidformer.ledger import Found, Ledger
from pidformer.results import Record
from pidformer.statistics import pack, percentage
from study.trained_networks import Pretrained

LENGTH = 32
"""Tokens of a sentence: the text is cut into stretches of this length."""
TEMPERATURE = 0.05
CLS, SEP = 101, 102
"""Around a sentence, in BERT's vocabulary."""
AT_ONCE = 64


def vectors(model: Any, ids: Tensor) -> Tensor:
    """Sentences (B, N) as all-MiniLM-L6-v2 embeds them: the mean of the last tokens, length 1."""
    ends = ids.new_tensor([CLS, SEP]).expand(len(ids), 2)
    whole = torch.cat([ends[:, :1], ids, ends[:, 1:]], dim=1)
    return F.normalize(model(whole).last_hidden_state.mean(1), dim=-1)  # (B, C)


def contrast(model: Any, ids: Tensor) -> Tensor:
    """- mean_b log softmax_c(cos(x_b, y_c) / T) at c = b, of ids (B, 2 N): y follows x."""
    first, second = vectors(model, torch.cat(ids.chunk(2, dim=1))).chunk(2)
    own = torch.arange(len(ids), device=ids.device)
    return F.cross_entropy(first @ second.T / TEMPERATURE, own)


@torch.no_grad()
def embedded(model: Any, sentences: Sequence[np.ndarray]) -> Tensor:
    """Sentences of any lengths, those of one length together; (S, C)."""
    device = next(model.parameters()).device
    by_length: dict[int, list[int]] = {}
    for place, tokens in enumerate(sentences):
        by_length.setdefault(len(tokens), []).append(place)
    found: dict[int, Tensor] = {}
    for places in by_length.values():
        rows = torch.from_numpy(np.stack([sentences[k] for k in places]).astype(np.int64))
        parts = [vectors(model, part.to(device)) for part in rows.split(AT_ONCE)]
        found |= dict(zip(places, torch.cat(parts).cpu(), strict=True))
    return torch.stack([found[place] for place in range(len(sentences))])


def cut(tokens: np.ndarray, length: int = LENGTH) -> list[np.ndarray]:
    """The stretches of a text, each with the token after it."""
    return [tokens[start : start + length] for start in range(0, len(tokens) - length, length)]


def misspelt(parts: Sequence[np.ndarray], strength: int, tokenizer: Any) -> list[np.ndarray]:
    """Each with letters changed, by draws of its own."""
    return [
        perturb(part, Perturbation(kind="characters", strength=strength, seed=k), tokenizer)[0]
        for k, part in enumerate(parts)
    ]


def nearness(clean: Tensor, noisy: Tensor) -> tuple[Tensor, Tensor]:
    """Of each noisy sentence the cosine to its own clean one, and whether none is nearer; (S,)."""
    cosine = noisy @ clean.T  # (S, S)
    return cosine.diagonal(), cosine.argmax(1) == torch.arange(len(clean))


def numbers(cosine: Tensor, hits: Tensor) -> dict[str, float]:
    """The mean cosine, and the share of sentences that are found."""
    return {"cosine": float(cosine.mean())} | percentage("found", int(hits.sum()), len(hits))


def measured_sentences(
    given: Pretrained, plan: Any, folder: Path, facts: Mapping[str, Any], strengths: Sequence[int]
) -> Iterator[Record]:
    """How near the sentences of the test text stay to themselves, by the strength of the noise."""
    corpus = open_corpus(plan.data, "test", given.tokenizer)
    about = {
        "data": plan.data.name,
        "data_hash": corpus.fingerprint[:16],
        "split": "test",
        "limit": plan.limit,
        "precision": "fp32",
    }
    ledger = Ledger("sentences", folder, {**facts, **about})
    parts = cut(corpus.tokens[: plan.limit])
    clean = embedded(given.model.eval(), [part[:-1] for part in parts])

    def work(strength: int) -> Found:
        noisy = misspelt(parts, strength, given.tokenizer)
        cosine, hits = nearness(clean, embedded(given.model, noisy))
        kept = [round(one, 5) for one in cosine.tolist()]
        details = {"cosine": kept, "found": pack(hits.numpy()), "sentences": len(hits)}
        return numbers(cosine, hits), details

    for strength in strengths:
        row = f"sentences/test/characters/{strength}"
        yield ledger.measure({"row": row}, partial(work, strength))
