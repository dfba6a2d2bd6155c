"""A trained network with a controller and no training: similarity by layer, noise, tuned gains."""
# B batch, N tokens

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pidformer as pf
from pidformer.analysis import token_similarity
from pidformer.data.text import Perturbation, perturb
from pidformer.statistics import mean_over_seeds
from pidformer.training.language import window_nll
from pidformer.tune.run import Space, search_grid
from study.finetuned import STRENGTHS, WINDOW
from study.sentences import LENGTH, cut, embedded, misspelt, nearness, numbers
from study.trained_networks import Pretrained

SMALL = Space(p=(0.01, 0.03, 0.1), i=(0.0, 0.003), d=(0.0, 0.03))
"""What a network that never saw a controller may bear: a tenth of the paper's gains, and less."""
STRETCHES, STRETCH = 4, 64
"""Stretches of text in which layers are looked at, and the tokens of each."""
BLOCK = 128
"""Tokens of a text whose mean loss is one observation of an interval."""


def look(given: Pretrained, tokens: np.ndarray, gains: Any) -> dict[str, Any]:
    """Whether gains of zero change a bit, and token similarity by layer, plain and with `gains`."""
    ids = torch.from_numpy(tokens[: STRETCHES * STRETCH].astype(np.int64)).view(-1, STRETCH)
    model = given.model
    with torch.no_grad():
        plain = model(ids)[0]
        zero = pf.convert(model, pf.PIDGains(), inplace=True)(ids)[0]
        found = {"is_identical": torch.equal(plain, zero), "similarity": similarity(model, ids)}
        pf.convert(model, gains, inplace=True)
        found |= {"gains": str(gains), "similarity_controlled": similarity(model, ids)}
    pf.revert(model)
    return found


def similarity(model: Any, ids: Tensor) -> list[float]:
    return [round(layer, 4) for layer in token_similarity(model, ids).tolist()]


def noise(
    given: Pretrained, tokens: np.ndarray, gains: Any, length: int = LENGTH
) -> Iterator[dict[str, Any]]:
    """How near a sentence stays to itself when letters change, plain and with `gains`.

    `cosine` of clean and noisy, and `found`: the share whose nearest clean sentence is their own.
    `difference` is that of the cosines, controlled minus plain, a pair for each sentence.
    """
    parts = cut(tokens, length)
    clean = [part[:-1] for part in parts]
    models = {"plain": given.model, "controlled": pf.convert(given.model, gains)}
    own = {name: embedded(model, clean) for name, model in models.items()}
    for strength in STRENGTHS:
        noisy = misspelt(parts, strength, given.tokenizer)
        rate = Perturbation(kind="characters", strength=strength).rate
        line: dict[str, Any] = {"rate": rate, "sentences": len(clean), "gains": str(gains)}
        near = {name: nearness(own[name], embedded(models[name], noisy)) for name in models}
        line |= {name: numbers(*found) for name, found in near.items()}
        moved = near["controlled"][0] - near["plain"][0]
        yield line | {"difference": mean_over_seeds(moved.tolist())[:3]}


@torch.no_grad()
def losses(
    given: Pretrained, tokens: np.ndarray, noise: Perturbation | None = None, batch_size: int = 8
) -> Tensor:
    """-log p of each token but the first, windows of 256 that score their second half."""
    device = next(given.model.parameters()).device
    read = perturb(tokens, noise, given.tokenizer)
    inputs, targets = (torch.from_numpy(part.astype(np.int64)).to(device) for part in read)
    return window_nll(
        given.model.eval(),
        inputs,
        targets,
        window=WINDOW,
        stride=WINDOW // 2,
        batch_size=batch_size,
    ).cpu()


def perplexity(
    given: Pretrained, tokens: np.ndarray, noise: Perturbation | None = None, batch_size: int = 8
) -> float:
    """exp of the mean loss."""
    return _perplexity(losses(given, tokens, noise, batch_size))


def tune(
    given: Pretrained, valid: np.ndarray, test: np.ndarray, space: Space = SMALL
) -> dict[str, Any]:
    """Perplexity of every stable gain on `valid`; of plain attention and of the best controller,
    the one of `valid`, on `test`.

    `difference` is controlled minus plain in nats per token, with its 95 % interval over blocks of
    128 tokens.
    """
    trials: list[dict[str, Any]] = []

    def scored(gains: pf.PIDGains, tokens: np.ndarray) -> Tensor:
        pf.convert(given.model, gains, inplace=True)
        return losses(given, tokens)

    plain = scored(pf.PIDGains(), valid)

    def score(gains: pf.PIDGains) -> dict[str, float]:
        own = plain if gains.kind == "softmax" else scored(gains, valid)
        ppl = _perplexity(own)
        trials.append({"gains": gains.to_dict(), "ppl": ppl, "difference": _moved(own, plain)})
        return {"ppl": ppl}

    search_grid(space, None, score)
    best = min(trials[1:], key=lambda trial: trial["ppl"])
    on_test = scored(pf.PIDGains(), test), scored(pf.PIDGains(**best["gains"]), test)
    pf.revert(given.model)
    return {
        "valid_tokens": len(valid),
        "test_tokens": len(test),
        "trials": trials,
        "is_any_better": best["ppl"] < trials[0]["ppl"],
        "best": best,
        "test": {
            "plain_ppl": _perplexity(on_test[0]),
            "best_ppl": _perplexity(on_test[1]),
            "difference": _moved(on_test[1], on_test[0]),
        },
    }


def _perplexity(nll: Tensor) -> float:
    return math.exp(float(nll.nanmean()))


def _moved(nll: Tensor, plain: Tensor) -> tuple[float, float, float]:
    """Mean of nll - plain, with its interval over blocks."""
    moved = nll - plain
    blocks = moved.tensor_split(max(2, len(moved) // BLOCK))
    return mean_over_seeds([float(block.nanmean()) for block in blocks])[:3]
