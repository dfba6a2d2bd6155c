"""`tune` of models that others trained: folders of Hugging Face's, and timm's."""

import json
import math
import shutil

import numpy as np
import pytest
import scipy.stats
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file

import pidformer as pf
from pidformer import results
from pidformer.errors import InputError
from pidformer.tune import Space, tune

tokenizers = pytest.importorskip("tokenizers")
hf = pytest.importorskip("transformers")

WORDS = [f"{a}{b}" for a in "abcdefgh" for b in "stuvwxyz"]
SIZE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
SIZE |= {"num_attention_heads": 4, "initializer_range": 0.2}
LLAMA = hf.LlamaConfig(vocab_size=64, max_position_embeddings=32, num_key_value_heads=2, **SIZE)
GRID = ("--p", "0.2", "--i", "0,0.1", "--d", "0")
SPACE = Space(p=(0.2,), i=(0.0, 0.1), d=(0.0,))


def saved(model, folder):
    core = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="as")
    )
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.save_pretrained(folder)
    core.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def llama(tmp_path):
    torch.manual_seed(0)
    return saved(hf.LlamaForCausalLM(LLAMA).eval(), tmp_path / "llama")


@pytest.fixture
def ids():
    return np.random.default_rng(0).integers(64, size=400)


@pytest.fixture
def texts(tmp_path, ids):
    folder = tmp_path / "texts"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(" ".join(WORDS[k] for k in ids))
    return folder


@pytest.fixture
def pictures(tmp_path):
    folder, random = tmp_path / "pictures" / "val", np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for k in range(4):
            pixels = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{k}.png")
    return folder.parent


@pytest.fixture
def vit(tmp_path):
    torch.manual_seed(0)
    config = hf.ViTConfig(image_size=16, patch_size=4, id2label={0: "cat", 1: "dog"}, **SIZE)
    hf.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    processor = hf.ViTImageProcessor(size={"height": 16, "width": 16})
    processor.save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@torch.no_grad()
def losses_by_hand(model, ids):
    """Windows of 32 inputs side by side, each on its own: the loss of every next token."""
    ids, found = torch.from_numpy(ids)[None], []
    for start in range(0, ids.shape[1] - 1, 32):
        part = ids[:, start : start + 33]
        logits = model(part[:, :-1]).logits[0].double()
        found.append(F.cross_entropy(logits, part[0, 1:], reduction="none"))
    return torch.cat(found).numpy()


def test_perplexities_and_intervals_are_those_of_convert_by_hand(llama, texts, ids, tmp_path):
    before = contents(llama)
    name, out = f"hf:{llama}", tmp_path / "out"
    found = tune(name, data=texts, out=out, space=SPACE, device="cpu")
    model = hf.LlamaForCausalLM.from_pretrained(llama).eval()
    plain = losses_by_hand(model, ids)
    assert [r.details["gains"]["i"] for r in found.trials] == [0.0, 0.0, 0.1]
    assert [r.details["gains"]["p"] for r in found.trials] == [0.0, 0.2, 0.2]
    for record in found.trials:
        own = losses_by_hand(pf.convert(model, pf.PIDGains(**record.details["gains"])), ids)
        assert record.metrics["ppl"] == pytest.approx(math.exp(own.mean()), rel=1e-5)
        assert record.metrics["tokens"] == 399
        minus = (own - plain)[: 399 // 32 * 32].reshape(-1, 32).mean(1)
        got = found.difference(record)
        assert got.mean == pytest.approx(minus.mean(), abs=1e-6)
        half = scipy.stats.sem(minus) * scipy.stats.t.ppf(0.975, len(minus) - 1)
        assert (got.low, got.high) == pytest.approx(
            (minus.mean() - half, minus.mean() + half), abs=1e-6
        )
    assert found.best.metrics["ppl"] == min(r.metrics["ppl"] for r in found.trials)
    assert contents(llama) == before
    (own,) = out.iterdir()
    assert own.name.startswith("hf-") and [path.name for path in own.iterdir()] == ["results.jsonl"]
    kept = results.read(own)
    assert [r.settings["model"] for r in kept] == [name] * 3
    assert {r.settings["label"] for r in kept} == {"llama"}


def test_a_stopped_search_goes_on_and_zero_gains_are_the_network_as_it_is(llama, texts, tmp_path):
    told, options = [], {"data": texts, "out": tmp_path / "out", "device": "cpu"}
    options["watch"] = lambda record, is_old: told.append(is_old)
    first = tune(f"hf:{llama}", space=SPACE, trials=2, **options)
    tune(f"hf:{llama}", space=SPACE, **options)
    assert told == [False, False, True, True, False]
    model = pf.convert(hf.LlamaForCausalLM.from_pretrained(llama), "0.4,0,0")
    controlled = saved(model, tmp_path / "controlled")
    found = tune(f"hf:{controlled}", space=SPACE, **options)
    assert found.trials[0].metrics["ppl"] == first.trials[0].metrics["ppl"]
    assert found.trials[0].details == first.trials[0].details


def test_the_same_weights_read_otherwise_are_another_model(llama, texts, tmp_path):
    """Only the configuration differs, which no fingerprint of weights sees."""
    other = shutil.copytree(llama, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 10.0}))
    options = {"data": texts, "out": tmp_path / "out", "space": SPACE, "device": "cpu"}
    first, second = (tune(f"hf:{folder}", **options) for folder in (llama, other))
    assert first.trials[0].settings["weights"] == second.trials[0].settings["weights"]
    assert abs(first.trials[0].metrics["ppl"] - second.trials[0].metrics["ppl"]) > 1


def test_the_result_says_when_nothing_beats_plain_attention(llama, texts, ids, tmp_path, run):
    """A network that has learned its text by heart is only disturbed by a controller."""
    model = hf.LlamaForCausalLM.from_pretrained(llama).train()
    rows = torch.from_numpy(np.stack([ids[k : k + 33] for k in range(0, 367, 32)]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = model(rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    folder = saved(model, tmp_path / "learned")
    command = ("tune", f"hf:{folder}", "--data", texts, *GRID, "--device", "cpu")
    command += ("--out", tmp_path / "out")
    code, out, err = run(*command)
    assert code == 0, err
    assert "no gains beat plain attention" in out and "minus plain, nats" in out
    code, out, _ = run(*command, "--json")
    found = json.loads(out)
    assert code == 0 and found["verdict"] == "no gains beat plain attention"
    assert found["best"] == found["plain"] and found["plain"]["minus_plain"] == [0, 0, 0]
    assert all(trial["minus_plain"][1] > 0 for trial in found["trials"][1:])
    code, out, _ = run(*command, "--limit", 30, "--json")  # one block has no spread
    assert code == 0 and json.loads(out)["trials"][1]["minus_plain"] is None


def test_an_image_classifier_is_tuned_image_by_image(vit, pictures, tmp_path, run):
    before, out = contents(vit), tmp_path / "out"
    code, text, err = run(
        "tune", f"hf:{vit}", "--data", pictures, *GRID, "--out", out, "--json", "--device", "cpu"
    )
    assert code == 0, err
    shown = ("--data", pictures, "--json", "--device", "cpu", "--out", tmp_path / "rows")
    model = hf.ViTForImageClassification.from_pretrained(vit)
    rights = []
    for trial in json.loads(text)["trials"]:
        gains = pf.PIDGains(p=0.2 * (len(rights) > 0), i=0.1 * (len(rights) > 1))
        assert trial["gains"] == str(gains)
        folder = tmp_path / f"by-hand-{len(rights)}"
        pf.convert(model, gains).save_pretrained(folder)
        shutil.copy(vit / "preprocessor_config.json", folder)
        code, rows, err = run("evaluate", f"hf:{folder}", *shown)
        assert code == 0, err
        rights.append(json.loads(rows)["models"][0]["rows"]["clean"]["top1"])
        assert trial["clean"] == rights[-1]
        assert trial["minus_plain"][0] == pytest.approx(rights[-1] - rights[0])
    assert contents(vit) == before


def test_timms_models_are_tuned_too(pictures, tmp_path):
    for old, new in (("cat", "n01440764"), ("dog", "n01443537")):  # of ImageNet
        (pictures / "val" / old).rename(pictures / "val" / new)
    torch.manual_seed(0)
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "w.safetensors")
    name = f"timm:test_vit@{tmp_path}/w.safetensors"
    options = {"data": pictures, "out": tmp_path / "out", "device": "cpu", "limit": 4}
    found = tune(name, metric="noise", space=SPACE, **options)
    (own,) = (tmp_path / "out").iterdir()
    assert len(found.trials) == 3 and len(results.read(own)) == 3
    assert {*found.trials[0].metrics} >= {"clean", "noise", "images"}


def test_bad_input_gets_one_line(llama, vit, texts, pictures, tmp_path, run):
    bert = saved(hf.BertModel(hf.BertConfig(vocab_size=64, **SIZE)), tmp_path / "bert")
    head = hf.BertLMHeadModel(hf.BertConfig(vocab_size=64, **SIZE))
    head = saved(head, tmp_path / "head")
    small = saved(hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=9, **SIZE)), tmp_path / "small")
    out = ("--out", tmp_path / "out")
    before = contents(llama)
    for name, options, words in (
        (f"hf:{llama}", [*out], "needs data; say where with --data DIR"),
        (f"hf:{llama}", ["--data", texts], "say where its trials go with --out DIR"),
        (f"hf:{llama}", ["--data", texts, "--out", llama / "tried"], "name another --out"),
        (f"hf:{llama}", ["--data", texts, "--out", llama], "stays as it is"),
        (f"hf:{llama}", ["--data", pictures, *out], "no valid text in"),
        (f"hf:{llama}", ["--data", texts, *out, "--metric", "pgd"], "is for text; its metric"),
        (f"hf:{llama}", ["--data", texts, *out, "--limit", 1], "limit must be at least 2"),
        (f"hf:{vit}", ["--data", texts, *out], "no image set in"),
        (f"hf:{vit}", ["--data", pictures, *out, "--metric", "ppl"], "is for images; its metrics"),
        (f"hf:{vit}", ["--data", pictures, "--metric", "pgd"], "with --out DIR"),
        (f"hf:{bert}", ["--data", texts, *out], "a BertModel, which predicts no next token"),
        (f"hf:{head}", ["--data", texts, *out], "a BertLMHeadModel, which predicts no next token"),
        (f"hf:{small}", ["--data", texts, *out], "are for a vocabulary of 9, its tokenizer has 64"),
        ("hf:nowhere", ["--data", texts, *out], "nowhere is no folder of a model"),
        ("nowhere", ["--data", texts], "nowhere is not a run folder"),
        ("timm:gone", ["--data", pictures, *out], "timm has no model 'gone'"),
    ):
        code, said, error = run("tune", name, *options, "--device", "cpu")
        assert code == 2 and said == "", name
        said = [line for line in error.splitlines() if line and "it/s" not in line]  # of a bar
        assert len(said) == 1 and words in said[0], error
    assert contents(llama) == before
    with pytest.raises(InputError, match="unknown metric 'fgsm'"):
        tune(f"hf:{llama}", data=texts, out=tmp_path / "out", metric="fgsm")
