import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pidformer import results
from pidformer.data.text import Perturbation, open_corpus
from pidformer.errors import InputError
from pidformer.evaluation.language import (
    LanguageSetup,
    _seeing,
    evaluate_language,
    evaluate_language_robustness,
    perplexities,
)
from pidformer.runs.model import load_language
from pidformer.training.language import window_nll
from pidformer.training.run import train
from tests.models.language.conftest import paper_like, tiny_model
from tests.training.tiny_language import tiny_language


def naive_sliding(model, tokens, window):
    """The paper's protocol one target at a time: the last `window` tokens before it, no batches."""
    total, count = 0.0, 0
    for target in range(1, len(tokens)):
        # The first window scores all its targets, each with that whole window's positions.
        if target <= min(window, len(tokens) - 1):
            context = tokens[: min(window, len(tokens) - 1)]
            place = target - 1
        else:
            context = tokens[target - window : target]
            place = -1
        with torch.no_grad():
            log_p = model(context[None]).logits[0, place].double().log_softmax(-1)
        total -= float(log_p[tokens[target]])
        count += 1
    return math.exp(total / count), count


@pytest.mark.parametrize("build", [tiny_model, paper_like])
def test_sliding_perplexity_equals_a_naive_loop(build):
    model = build("0.4,0.3,0.1,0.5")
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(0.2)  # so that perplexities are not astronomical
    tokens = torch.randint(0, 61, (90,), generator=torch.Generator().manual_seed(2))
    tokens[40] = 0  # a word like any other
    with torch.no_grad():
        nll = window_nll(model, tokens[:-1], tokens[1:], window=16, stride=1, batch_size=7)
    expected, count = naive_sliding(model, tokens, 16)
    assert count == len(nll) == 89 and not nll.isnan().any()
    assert math.exp(float(nll.mean())) == pytest.approx(expected, rel=1e-6)


class Counting(torch.nn.Module):
    """Records which targets are scored, and with how many tokens before them."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def forward(self, input_ids, targets, reduction):
        for row, wanted in zip(input_ids.tolist(), targets.tolist(), strict=True):
            for back, target in enumerate(reversed(wanted)):
                assert target not in self.seen
                self.seen[target] = len(row) - back
                assert row[len(row) - 1 - back] == target - 1
        loss = torch.zeros(targets.shape)
        return type("Out", (), {"loss": loss})


@settings(deadline=None, max_examples=60)
@given(count=st.integers(1, 60), window=st.integers(1, 20), data=st.data())
def test_every_target_is_scored_once_with_enough_context(count, window, data):
    stride = data.draw(st.integers(1, window))
    world = data.draw(st.integers(1, 3))
    tokens = torch.arange(count + 1)
    model, scored = Counting(), torch.zeros(count, dtype=torch.long)
    for rank in range(world):
        nll = window_nll(
            model, tokens[:-1], tokens[1:], window=window, stride=stride, batch_size=4,
            rank=rank, world_size=world,
        )  # fmt: skip
        scored += ~nll.isnan()
    assert (scored == 1).all()
    for target, context in model.seen.items():
        if stride == window:  # segments: nothing from the one before
            assert context == (target - 1) % window + 1
        elif target <= window:
            assert context == target
        else:
            assert context >= window - stride + 1


@pytest.fixture(scope="module")
def trained(texts, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "pid"
    return run, train(tiny_language(), run, data=texts, device="cpu", is_shown=False)


@pytest.mark.slow
def test_segments_are_what_training_validates_with(trained, texts):
    run, scores = trained
    found = evaluate_language(
        run, data=texts, protocol="segments", device="cpu", weights="model", split="valid"
    )
    assert found["ppl"] == pytest.approx(scores["ppl"], rel=1e-6)
    assert found["tokens"] == scores["tokens"]
    assert found["bits_per_character"] == pytest.approx(scores["bits_per_character"], rel=1e-6)


@pytest.mark.slow
def test_protocols_and_their_records(trained, texts):
    run, _ = trained
    loaded = load_language(run)
    corpus = open_corpus(texts, "test", loaded.tokenizer)
    tokens = torch.from_numpy(corpus.tokens.astype(np.int64))
    found = {
        protocol: evaluate_language(run, data=texts, split="test", protocol=protocol, device="cpu")
        for protocol in ("sliding", "strided", "segments", "documents")
    }
    expected, count = naive_sliding(loaded.model, tokens, 16)
    assert found["sliding"]["ppl"] == pytest.approx(expected, rel=1e-6)
    assert found["sliding"]["tokens"] == count == len(tokens) - 1
    assert found["documents"]["tokens"] == len(tokens) - corpus.documents[0] - 2
    assert found["sliding"]["ppl"] <= found["segments"]["ppl"]
    bits = math.log2(found["sliding"]["ppl"]) * len(tokens) / corpus.characters
    assert found["sliding"]["bits_per_character"] == pytest.approx(bits)
    kept = [r for r in results.read(run) if r.kind == "language"][-4:]
    assert [r.settings["row"] for r in kept] == [
        "sliding/test", "strided/test", "segments/test", "documents/test",
    ]  # fmt: skip
    settings = kept[0].settings
    assert settings["gains"] == "PIDGains(p=0.4, i=0.5, d=0.1, beta=0.3)"
    assert settings["train_seed"] == 0 and len(settings["weights"]) == 16
    assert (settings["window"], settings["stride"]) == (16, 1)
    assert len(kept[3].details["document_ppl"]) == 2
    assert kept[0].details["block_nll"] == pytest.approx([found["sliding"]["loss"]])


def test_a_loss_that_is_no_number_is_not_left_out():
    """The text that a model fails on must not make its perplexity better."""

    class Broken(torch.nn.Module):
        def forward(self, input_ids, targets, reduction):
            loss = torch.ones(targets.shape)
            loss[input_ids[:, -targets.shape[1] :] == 3] = torch.nan
            return SimpleNamespace(loss=loss)

    tokens = torch.arange(9)
    targets = torch.cat([tokens[1:-1], torch.tensor([-100])])
    nll = window_nll(Broken(), tokens[:-1], targets, window=4, stride=2, batch_size=2)
    assert nll.isinf().nonzero().flatten().tolist() == [3]
    assert nll.isnan().nonzero().flatten().tolist() == [7]


def test_intervals_hold_the_mean_and_narrow_with_text():
    from pidformer.data.text import Corpus

    def interval(count):
        nll = np.random.default_rng(0).exponential(3.0, count)
        corpus = Corpus(
            tokens=np.zeros(count), documents=np.zeros(1), characters=5 * count, unknown=0,
            fingerprint="",
        )  # fmt: skip
        return perplexities(nll, np.arange(count) % 10, 0, corpus)

    short, long = interval(20_000), interval(600_000)
    for found in (short, long):
        assert found["ppl_low"] < found["ppl"] < found["ppl_high"]
        assert found["unknown"] == pytest.approx(10)
    assert long["ppl_high"] - long["ppl_low"] < 0.5 * (short["ppl_high"] - short["ppl_low"])


def test_the_interval_of_few_blocks_is_students():
    """Of three blocks the normal one holds the truth 81 times in 100, not 95."""
    corpus = SimpleNamespace(tokens=range(3200), characters=3200)
    nll = np.random.default_rng(1).exponential(3.0, 3200)
    found = perplexities(nll, np.zeros(3200), None, corpus)
    blocks = nll[:3072].reshape(3, 1024).mean(1)
    low, high = stats.t.interval(0.95, 2, nll.mean(), stats.sem(blocks))
    assert math.log(found["ppl_low"]) == pytest.approx(low)
    assert math.log(found["ppl_high"]) == pytest.approx(high)


@pytest.mark.slow
def test_noise_in_the_context_costs_perplexity_and_longer_windows_work(trained, texts):
    run, _ = trained
    found = evaluate_language_robustness(
        run, data=texts, split="test", strengths=(1, 5), windows=(32,), device="cpu"
    )
    assert list(found) == [
        "clean", "characters/1", "characters/5", "swaps/1", "swaps/5", "drops/1", "drops/5",
        "window/32", "window/32/sliding",
    ]  # fmt: skip
    for kind in ("characters", "swaps"):
        assert found[f"{kind}/5"]["ppl"] > found["clean"]["ppl"]
    assert found["drops/5"]["tokens"] < found["clean"]["tokens"]
    rows = [r.settings["row"] for r in results.read(run) if r.kind == "language"][-2:]
    assert rows == ["strided/test/window/32", "strided/test/window/32/sliding"]


@pytest.mark.slow
def test_attention_that_slides_over_a_longer_window_sees_the_training_length(trained, texts):
    run, _ = trained
    options = {"data": texts, "split": "test", "limit": 32 + 2 * 16 + 1}
    setup = LanguageSetup(run=run, device=torch.device("cpu"), **options)
    found = setup.measure("strided", window=32, is_sliding=True).metrics["loss"]
    model, length = setup.loaded.model, setup.loaded.length
    assert length < 32 and model.config.sliding_window is None  # as it was
    model.config.sliding_window = 2  # a run whose attention slides already
    with _seeing(model, length):
        assert model.config.sliding_window == 2
    assert model.config.sliding_window == 2
    tokens = torch.from_numpy(setup.tokens.astype("int64"))
    seen = torch.ones(1, 1, 32, 32).tril().triu(1 - length).bool()
    losses = []
    for start, scored in ((0, 32), (16, 16), (32, 16)):
        window, targets = tokens[start : start + 32], tokens[start + 1 : start + 33]
        with torch.no_grad():
            logits = model(window[None], attention_mask=seen).logits[0]
        losses.append(F.cross_entropy(logits, targets, reduction="none")[-scored:])
    assert found == pytest.approx(float(torch.cat(losses).mean()), rel=1e-5)


@pytest.mark.slow
def test_other_gains_and_limits(trained, texts):
    run, _ = trained
    with pytest.warns(UserWarning, match=r"trained with gains .* loaded with"):
        other = evaluate_language(
            run, data=texts, protocol="segments", gains="0,0,0", device="cpu", limit=100
        )
    assert other["tokens"] == 99


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limit": 1}, "limit must be at least 2 tokens, got 1"),
        ({"limit": -1}, "limit must be at least 2 tokens, got -1"),
        ({"protocol": "slidin"}, "did you mean 'sliding'"),
        ({"protocol": "sliding", "stride": 4}, "use strided"),
        ({"protocol": "strided", "stride": 99}, "stride must be 1 to the window of 16"),
        ({"protocol": "segments", "window": 0}, "window must be >= 1"),
        ({"split": "tset"}, "unknown split 'tset'"),
        ({"precision": "fp8"}, "fp32, tf32 or bf16"),
        ({"weights": "ema"}, "no ema weights"),
        ({"device": "tpu"}, "device"),
    ],
)
def test_questions_that_cannot_be_answered(trained, texts, options, words):
    with pytest.raises(InputError, match=words):
        evaluate_language(trained[0], **({"data": texts} | options))


@pytest.mark.slow
def test_bf16_is_near(trained, texts):
    scores = [
        evaluate_language(
            trained[0], data=texts, protocol="strided", device="cpu", precision=precision
        )["ppl"]
        for precision in ("fp32", "bf16")
    ]
    assert scores[1] == pytest.approx(scores[0], rel=0.02) and scores[0] != scores[1]


@pytest.mark.slow
def test_noise_is_named_in_the_record(trained, texts):
    noise = Perturbation(kind="drops", strength=2, seed=4)
    evaluate_language(trained[0], data=texts, protocol="segments", noise=noise, device="cpu")
    record = results.read(trained[0])[-1]
    assert record.settings["noise"] == repr(noise)
    assert record.settings["row"] == "segments/valid/drops/2"
