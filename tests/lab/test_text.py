"""Losses of a prompt, token by token, against the model asked one context at a time."""

import random

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

import pidformer as pf
from pidformer.data.text import perturb
from pidformer.errors import InputError
from pidformer.lab.address import from_query, to_query
from pidformer.lab.knobs import NOBODY
from pidformer.lab.runs import EXAMPLES, TEXTS, Catalogue
from pidformer.lab.text import MOST_CHARACTERS, TextKnobs, opened, read

pytestmark = pytest.mark.slow

PROMPT = "w1 w3 w9 w27 w5 w15"
PASSAGE = (
    "The old man looked at her for some time without saying a word, and then he turned away, "
    "and went slowly down the stairs into the garden."
)


@pytest.mark.parametrize("strength", [0, 5])
@pytest.mark.parametrize("noise", ["characters", "swaps", "drops"])
def test_losses_are_those_of_each_context_on_its_own(language_run, noise, strength):
    loaded = opened(str(language_run))
    knobs = TextKnobs(prompt=PROMPT, noise=noise, strength=strength, tokens=3)
    found = read(loaded, knobs)
    tokens = np.array(loaded.tokenizer.encode(PROMPT))
    inputs, targets = perturb(tokens, knobs.perturbation, loaded.tokenizer)
    for place, target in enumerate(targets.tolist()):
        if target == -100:
            assert found.tokens[place].loss is None
            continue
        with torch.no_grad():
            context = torch.from_numpy(inputs[: place + 1])[None]
            chance = loaded.model(context).logits[0, -1].double().softmax(-1)[target]
        assert found.tokens[place].loss == pytest.approx(-float(chance.log()), abs=1e-4)
        assert found.tokens[place].target == loaded.tokenizer.token_text(target)
    assert found.tokens[-1].loss is None
    assert found.perplexity == pytest.approx(np.exp(np.mean(found.losses)))


@pytest.mark.parametrize("folder", TEXTS.values())
def test_an_example_is_small_and_knows_english_from_letters(folder):
    loaded = opened(str(EXAMPLES / folder))
    sizes = [path.stat().st_size for path in (EXAMPLES / folder).iterdir()]
    assert sum(sizes) < 150_000
    wanted = None if folder.endswith("softmax") else pf.PIDGains.paper("lm")
    assert loaded.model.gains == wanted
    shuffled = "".join(random.Random(0).sample(PASSAGE, len(PASSAGE)))
    english, letters = (read(loaded, TextKnobs(prompt=t)) for t in (PASSAGE, shuffled))
    assert english.perplexity < 30 and letters.perplexity > 200  # of 512 pieces
    assert english.continuation.isascii() and " " in english.continuation


def test_two_models_open_the_view_those_that_were_named_or_the_examples(language_run, tmp_path):
    bare = Catalogue([], tmp_path)
    assert bare.pair(list(bare.writers)) == tuple(TEXTS)
    named = Catalogue([language_run], tmp_path)
    assert list(named.writers) == ["lm", *TEXTS]
    assert named.pair(list(named.writers)) == ("lm", NOBODY)


def test_the_same_seed_writes_the_same(language_run):
    loaded = opened(str(language_run))
    one, two, other = (
        read(loaded, TextKnobs(prompt=PROMPT, tokens=8, seed=seed)).continuation
        for seed in (1, 1, 2)
    )
    assert one == two != other


def test_an_empty_prompt_is_refused(language_run):
    with pytest.raises(InputError, match="no token"):
        read(opened(str(language_run)), TextKnobs(prompt=""))


@pytest.mark.parametrize("letter", ["w ", "&#%+?", "\U0001f600"])
def test_the_longest_prompt_survives_its_address(letter):
    inputs = pytest.importorskip("pidformer.lab.inputs", reason="needs the extra lab")
    knobs = TextKnobs(prompt=(letter * MOST_CHARACTERS)[:MOST_CHARACTERS])
    address = to_query("text", knobs)
    assert from_query(TextKnobs, address, "text") == knobs
    assert len(address) <= inputs.LONGEST_TEXT  # or else the page cannot read it


def test_a_prompt_in_an_address_is_quoted_in_the_command():
    command = TextKnobs(prompt="it's; rm -rf").command("runs/a b")
    assert command.startswith("pidformer generate 'runs/a b' --prompt 'it'\"'\"'s; rm -rf' ")


def test_what_is_written_has_the_loss_of_each_token_on_its_own(language_run):
    loaded = opened(str(language_run))
    found = read(loaded, TextKnobs(prompt=PROMPT, tokens=4, strength=5))
    assert "".join(token.text for token in found.written) == found.continuation
    context = loaded.tokenizer.encode("".join(token.text for token in found.tokens))
    for token in found.written:
        with torch.no_grad():
            chances = loaded.model(torch.tensor([context])).logits[0, -1].double().softmax(-1)
        number = 0 if token.text == "\n" else loaded.tokenizer.encode(token.text)[0]
        assert token.loss == pytest.approx(-float(chances[number].log()), abs=1e-4)
        context.append(number)
