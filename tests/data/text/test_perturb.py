import importlib
from collections import Counter

import numpy as np
import pytest

from pidformer.data.text import (
    Perturbation,
    WordVocabulary,
    perturb,
)
from pidformer.errors import InputError


@pytest.mark.parametrize("kind", ["characters", "swaps", "drops"])
def test_noise_changes_the_context_more_with_strength_and_never_the_targets(kind):
    words = ["<eos>", "<unk>", *(f"word{n}" for n in range(40))]
    words += ["wordx1"]
    vocabulary = WordVocabulary(words)
    tokens = np.random.default_rng(1).integers(2, 42, 4000)
    clean = perturb(tokens, None, vocabulary)
    assert (clean.inputs == tokens[:-1]).all() and (clean.targets == tokens[1:]).all()
    amounts = []
    for strength in range(1, 6):
        noise = Perturbation(kind=kind, strength=strength)
        found = perturb(tokens, noise, vocabulary)
        again = perturb(tokens, noise, vocabulary)
        assert (found.inputs == again.inputs).all()
        short = perturb(tokens[:1000], noise, vocabulary)  # a place's fate is its own
        assert (short.inputs[:500] == found.inputs[:500]).all()
        if kind == "drops":
            amounts.append(1 - len(found.inputs) / len(clean.inputs))
            assert amounts[-1] == pytest.approx(noise.rate, abs=0.015)
        else:
            assert (found.targets == clean.targets).all()
            amounts.append((found.inputs != clean.inputs).mean())
        if kind == "swaps":
            assert Counter(found.inputs.tolist()) == Counter(clean.inputs.tolist())
    assert amounts == sorted(amounts) and amounts[0] > 0
    other = perturb(tokens, Perturbation(kind=kind, seed=1), vocabulary)
    same = perturb(tokens, Perturbation(kind=kind), vocabulary)
    assert len(other.inputs) != len(same.inputs) or (other.inputs != same.inputs).any()


def test_character_noise_hits_letters_at_its_rate():
    """P(a word of n letters survives) = (1 - rate)^n."""
    vocabulary = WordVocabulary(["<eos>", "<unk>", "ab", "abcdefgh", "!"])
    tokens = np.tile([2, 3, 4], 3000)
    found = perturb(tokens, Perturbation(kind="characters", strength=4), vocabulary).inputs
    changed = [(found[k::3] != tokens[k]).mean() for k in range(3)]
    assert changed[0] == pytest.approx(1 - 0.9**2, abs=0.03)
    assert changed[1] == pytest.approx(1 - 0.9**8, abs=0.03)
    assert changed[2] == 0


def test_a_word_that_is_hit_changes_by_one_letter_and_others_at_the_rate():
    class Letters:
        """Tokens n are words of n letters; what each becomes is kept."""

        eos_id, found = None, []

        def token_text(self, number):
            return "Abcdefgh"[:number]

        def encode_token(self, text):
            self.found.append(text)
            return [0]

    for letters, strength in ((1, 5), (3, 4), (8, 5)):
        noise, tokenizer = Perturbation(kind="characters", strength=strength), Letters()
        tokenizer.found = []
        perturb(np.full(6001, letters), noise, tokenizer)
        word = tokenizer.token_text(letters)
        changed = np.array(
            [[a != b for a, b in zip(word, w, strict=True)] for w in tokenizer.found]
        )
        assert changed.any(1).all() and all(w.isalpha() for w in tokenizer.found)
        assert not any(
            w[0] in "aA" for w, hit in zip(tokenizer.found, changed, strict=True) if hit[0]
        )
        each = (1 + (letters - 1) * noise.rate) / letters
        assert changed.mean(0) == pytest.approx(np.full(letters, each), abs=0.04)
        assert len(changed) / 6000 == pytest.approx(1 - (1 - noise.rate) ** letters, abs=0.02)
        others = {a for w in tokenizer.found for a in w} - set(word)
        assert others >= set("abcdefghijklmnopqrstuvwxyz") - set(word) - {"a"}


def test_swaps_and_drops_where_every_token_is_chosen(monkeypatch):
    """A token moves once at most; the first is never left out, nothing follows the last."""
    module = importlib.import_module("pidformer.data.text.perturb")
    monkeypatch.setattr(module, "_uniform", lambda noise, count: np.zeros(count))
    vocabulary = WordVocabulary(["<eos>", "<unk>"])
    swapped = perturb(np.arange(8), Perturbation(kind="swaps"), vocabulary)
    assert swapped.inputs.tolist() == [1, 0, 3, 2, 5, 4, 6]
    assert swapped.targets.tolist() == [1, 2, 3, 4, 5, 6, 7]
    dropped = perturb(np.arange(8), Perturbation(kind="drops"), vocabulary)
    assert (dropped.inputs.tolist(), dropped.targets.tolist()) == ([0], [1])


def test_perturbations_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match="did you mean 'drops'"):
        Perturbation(kind="drop")
    with pytest.raises(InputError, match="strength must be 1 to 5"):
        Perturbation(kind="drops", strength=6)
