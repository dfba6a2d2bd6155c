"""`evaluate` of language models that others trained: folders of Hugging Face's."""

import json
import math

import pytest

import pidformer as pf
from pidformer import results
from pidformer.errors import InputError
from pidformer.evaluation.language import evaluate_language
from tests.tune.test_others import (  # fixtures among them
    SIZE,
    contents,
    hf,
    ids,  # noqa: F401
    llama,  # noqa: F401
    losses_by_hand,
    saved,
    texts,  # noqa: F401
)

CPU = ("--device", "cpu")


def test_perplexity_is_that_of_the_model_by_hand(llama, texts, ids, run, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    model, before = hf.LlamaForCausalLM.from_pretrained(llama).eval(), contents(llama)
    pf.convert(model, "0.2,0.1,0").save_pretrained(tmp_path / "controlled")
    (tmp_path / "controlled" / "tokenizer.json").write_bytes(
        (llama / "tokenizer.json").read_bytes()
    )
    both = (f"hf:{llama}", f"hf:{tmp_path}/controlled")
    given = ("--data", texts, "--protocol", "segments", "--split", "valid,test", "--json", *CPU)
    code, found, err = run("evaluate", *both, *given)
    assert code == 0, err
    plain = hf.LlamaForCausalLM.from_pretrained(llama).eval()
    for name, network in zip(both, (plain, pf.convert(plain, "0.2,0.1,0")), strict=True):
        rows = json.loads(found)["runs"][name]
        assert [*rows] == ["valid, segments", "test, segments"]
        expected = math.exp(losses_by_hand(network, ids).mean())
        assert rows["valid, segments"]["ppl"] == pytest.approx(expected, rel=1e-5)
    assert contents(llama) == before
    folders = sorted((tmp_path / "evaluations").iterdir())
    assert [len(results.read(folder)) for folder in folders] == [2, 2]
    again = run("evaluate", *both, *given)
    assert json.loads(again[1]) == json.loads(found)  # its seconds too: nothing measured again
    other = pf.convert(plain, "0.9,0,0")  # the same weights in the same place
    other.save_pretrained(tmp_path / "controlled")
    _, found, _ = run("evaluate", both[1], *given)
    rows = json.loads(found)["runs"][both[1]]
    expected = math.exp(losses_by_hand(other, ids).mean())
    assert rows["valid, segments"]["ppl"] == pytest.approx(expected, rel=1e-5)


def test_windows_that_a_model_has_no_positions_for_are_left_out(llama, texts, run, tmp_path):  # noqa: F811
    gpt = hf.GPT2Config(vocab_size=64, n_positions=600, n_embd=32, n_layer=2, n_head=2)
    gpt = saved(hf.GPT2LMHeadModel(gpt), tmp_path / "gpt")
    (texts / "valid.txt").write_text(" ".join(5 * [(texts / "valid.txt").read_text()]))
    given = ("--data", texts, "--suite", "robustness", "--out", tmp_path / "out", "--json", *CPU)
    for folder, longer in ((llama, []), (gpt, ["valid, window/512"])):
        code, found, err = run("evaluate", f"hf:{folder}", *given)
        assert code == 0, err
        rows = json.loads(found)["runs"][f"hf:{folder}"]
        assert [row for row in rows if "window" in row] == longer and len(rows) == 16 + len(longer)


def test_bad_input_gets_one_line(llama, texts, run, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    bert = saved(hf.BertModel(hf.BertConfig(vocab_size=64, **SIZE)), tmp_path / "bert")
    text = ("--data", texts)
    for name, given, words in (
        (f"hf:{llama}", (), "needs data; say where with --data DIR"),
        (f"hf:{bert}", text, "BertModel, which predicts no next token"),
        (f"hf:{llama}", (*text, "--gains", "0.1,0,0"), "other gains and averaged weights are for"),
        (f"hf:{llama}", (*text, "--ema"), "other gains and averaged weights are for"),
        (f"hf:{llama}", (*text, "--suite", "quick"), "unknown suite of language"),
        (f"hf:{tmp_path}/no", text, "no folder of a model"),
        (f"hf:{llama}", ("--data", tmp_path / "no"), "does not exist"),
    ):
        code, _, err = run("evaluate", name, *given, *CPU)
        line = err.strip().splitlines()[-1]  # behind transformers' own bars
        assert code == 2 and line.startswith("pidformer: ") and words in line, err
    with pytest.raises(InputError, match="sliding is for our models"):
        evaluate_language(f"hf:{llama}", data=texts, is_sliding=True, device="cpu")
    mixed = run("evaluate", f"hf:{llama}", "timm:test_vit", *text, *CPU)
    assert mixed[0] == 2 and "different tasks (classification, language)" in mixed[2]
