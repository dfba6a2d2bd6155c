"""Which tokens a query sees: masks that clients make themselves (4-D), padding, windows, caches."""

import pytest
import torch
from transformers import DynamicCache, StaticCache

from tests.models.language.beside_llama import GAINS, same, twins
from tests.models.language.conftest import some_tokens, tiny_model


def seen_prefix(rows, length, prefix):
    """A prefix sees itself whole, what follows sees it and the past: bool (B, 1, N, N)."""
    place = torch.arange(length)
    seen = (place[None] <= place[:, None]) | (place < prefix)[None]
    return seen.expand(rows, 1, length, length)


def as_bias(seen):
    return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("given", [seen_prefix, lambda *of: as_bias(seen_prefix(*of))])
def test_a_mask_of_ones_own_is_taken_as_it_is_as_by_llama(given):
    """It lets tokens see later ones, which no other mask of the model does."""
    (model, llama), tokens = twins(), some_tokens(2, 9)
    mask = given(2, 9, 4)
    ours = model(tokens, attention_mask=mask, use_cache=False).logits
    same(ours, llama(tokens, attention_mask=mask, use_cache=False).logits)
    assert (ours - model(tokens).logits)[:, 0].abs().max() > 1e-2


@pytest.mark.parametrize("gains", [None, GAINS])
def test_a_mask_of_ones_own_holds_however_tokens_are_asked_for(gains):
    model, tokens, mask = tiny_model(gains), some_tokens(2, 9), seen_prefix(2, 9, 4)
    shown = model(tokens, attention_mask=mask, output_attentions=True, use_cache=False)
    for kernel in shown.attentions:
        assert torch.equal(kernel > 0, mask.expand_as(kernel))
    same(model(tokens, attention_mask=mask, use_cache=False).logits, shown.logits)
    targets = some_tokens(2, 9, seed=1)
    nll = torch.nn.functional.cross_entropy(shown.logits.mT, targets, reduction="none")
    for count in (9, 7, 1):
        given = {"targets": targets[:, -count:], "reduction": "none"}
        same(model(tokens, attention_mask=mask, **given).loss, nll[:, -count:])


def plain_mask(real, window):
    """The definition token by token: bool (B, 1, N, N)."""
    rows, length = real.shape
    seen = torch.zeros(rows, 1, length, length, dtype=torch.bool)
    for row in range(rows):
        for query in range(length):
            for key in range(query + 1):
                is_near = window is None or query - key < window
                seen[row, 0, query, key] = key == query or (is_near and bool(real[row, key]))
    return seen


def some_padding(rows, length):
    """None, on the left, on the right, and anywhere."""
    real = torch.ones(rows, length, dtype=torch.long)
    real[1, :4] = 0
    real[2, -3:] = 0
    real[3] = torch.tensor([1, 0, 1, 1, 0, 0, 1, 1, 0, 1])
    return real


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("window", [None, 3, 10, 11])
def test_padding_windows_and_caches_hide_what_the_definition_hides(window, is_padded):
    model, tokens = tiny_model(GAINS, sliding_window=window), some_tokens(4, 10)
    real = some_padding(4, 10) if is_padded else torch.ones(4, 10, dtype=torch.long)
    given = {
        "attention_mask": plain_mask(real, window),
        "position_ids": (real.cumsum(-1) - 1).clamp(min=0),
    }
    expected = model(tokens, **given, use_cache=False).logits
    same(model(tokens, attention_mask=real, use_cache=False).logits, expected)
    for parts in ((10,), (1, 9), (4, 6), (6, 1, 3), (5, 1, 1, 1, 1, 1)):
        for cache in (
            DynamicCache(config=model.config),
            StaticCache(config=model.config, max_cache_len=10),
            StaticCache(config=model.config, max_cache_len=13),
        ):
            found, end = [], 0
            with torch.no_grad():
                for part in tokens.split(parts, 1):
                    end += part.shape[1]
                    found.append(model(part, real[:, :end], past_key_values=cache).logits)
            same(torch.cat(found, 1), expected)
