import json

import pytest
import torch
from safetensors.torch import load_file

import pidformer as pf
from pidformer import load, results
from pidformer.analysis import certify, token_similarity
from pidformer.data import open_images, sample_images
from tests.report.runs import make_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [make_run(folder / "softmax", None), make_run(folder / "pid", "deit")]


@pytest.fixture
def some(runs, tmp_path):
    return ("analyze", *runs, "--out", tmp_path / "out", "--limit", 20, "--spectrum-limit", 6)


@pytest.mark.slow
def test_numbers_figures_and_records(run, some, runs, tmp_path):
    before = load_file(runs[1] / "model.safetensors")
    code, out, _ = run(*some, "--json", "--seed", 3)
    assert code == 0
    found = json.loads(out)
    assert [model["label"] for model in found["models"]] == ["softmax", "pid"]
    _check_numbers(found["models"], runs)
    _check_records(runs)
    figures = ["similarity.png", "spectrum.png", "trajectory.gif", "trajectory.png"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == figures
    after = load_file(runs[1] / "model.safetensors")
    assert all(bool((before[name] == after[name]).all()) for name in before)


def _check_numbers(models, runs):
    """The same as from the functions."""
    images = sample_images(open_images("digits", "val"), 20, 3, image_size=8).images
    small = sample_images(open_images("digits", "val"), 6, 3, image_size=8).images
    for folder, shown in zip(runs, models, strict=True):
        model = load(folder)
        which = {"blocks": {}, "patch": {"tokens": "patch"}, "values": {"of": "values"}}
        for name, options in which.items():
            expected = token_similarity(model, images, **options).tolist()
            assert shown["similarity"][name] == pytest.approx(expected, abs=1e-6)
        certificate = certify(model, small, seed=3)
        assert shown["certificate"]["verdict"] == certificate.verdict
        assert shown["images"] == 20 and shown["certificate"]["images"] == 6


def _check_records(runs):
    """One for each thing measured, with all that is needed to measure it again."""
    for folder in runs:
        records = [r for r in results.read(folder) if r.kind == "analysis"][-4:]
        whats = [record.settings["what"] for record in records]
        assert whats == ["token_similarity", "attention", "spectrum", "certificate"]
        for record in records:
            names = ("model", "weights", "label", "gains", "train_seed", "recipe", "data")
            names += ("data_hash", "machine", "command", "seed", "limit")
            assert set(names) <= set(record.settings)
        assert set(records[0].metrics) >= {"similarity_layer_1", "similarity_layer_3"}
        assert len(records[0].details["similarity"]["blocks"]) == 3
        assert len(records[1].details["attention_rank"]) == 3
        assert len(records[2].details["layers"]) == 3
        assert records[0].settings["data_hash"] != records[1].settings["data_hash"]
    softmax, pid = (results.read(folder)[-1] for folder in runs)
    assert softmax.settings["recipe"] == pid.settings["recipe"]  # twins
    assert softmax.settings["gains"] is None and "p=0.8" in pid.settings["gains"]
    assert "worst_radius" in pid.metrics and "worst_radius" not in softmax.metrics


@pytest.mark.slow
def test_words_a_table_and_a_line_for_each_step(run, some):
    code, out, err = run(*some)
    assert code == 0
    for word in ("min Re kappa", "no control", "unstable in the idealised", "stable gains"):
        assert word in out
    assert out.count("LayerNorm") == 1 and "trajectory.gif" in out
    assert "pid  certificate" in err and "\x1b" not in err


def test_other_images_are_taken_from_data(run, runs, tmp_path):
    code, _, err = run("analyze", runs[0], "--data", tmp_path / "none", "--out", tmp_path / "o")
    assert code == 2 and "no image set" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing"], "not a run folder"),
        (["--limit", "0"], "limit must be at least 1"),
        (["--spectrum-limit", "0"], "limit must be at least 1"),
        (["--device", "tpu"], "device must be"),
        (["--out", __file__], "is a file"),
        (["--colour"], "--colour"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(
    run, runs, tmp_path, monkeypatch, arguments, words
):
    monkeypatch.chdir(tmp_path)
    given = [] if arguments == ["missing"] else [runs[0]]
    code, out, err = run("analyze", *given, *arguments)
    assert code == 2 and out == ""
    assert err.startswith("pidformer: ") and err.count("\n") == 1 and words in err


@pytest.mark.slow
def test_a_function_of_the_users_whose_attention_cannot_be_read(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_to_analyze.py").write_text(MINE)
    given = ("analyze", "mine_to_analyze:make", "--data", "digits", "--limit", 5, "--json")
    code, out, _ = run(*given)
    assert code == 0
    (found,) = json.loads(out)["models"]
    assert found["certificate"].startswith("no certificate") and "still works" in out
    (record,) = results.read(tmp_path / "analysis" / "make")
    assert record.settings["what"] == "token_similarity"


@pytest.mark.slow
def test_another_recursion_has_spectra_and_no_certificate(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaky_to_analyze.py").write_text(LEAKY)
    code, out, err = run("analyze", "leaky_to_analyze:make", "--data", "digits", "--limit", 4)
    assert code == 0, err
    assert "integral_leak follows another recursion" in out
    records = {r.settings["what"]: r for r in results.read(tmp_path / "analysis" / "make")}
    assert list(records) == ["control_scale", "token_similarity", "attention", "spectrum"]
    assert "no_certificate" in records["spectrum"].settings  # the last one
    assert "no_certificate" not in records["token_similarity"].settings
    assert len(records["spectrum"].details["layers"]) == 2
    assert f"{records['spectrum'].metrics['min_real']:+.3f}" in out  # in the table
    assert 0 < records["control_scale"].metrics["ratio"] < 10


LEAKY = """
import timm

import pidformer.models

def make():
    return timm.create_model(
        "pid_deit_tiny_patch16_224", gains="0.4,0.1,0.05", integral_leak=0.9, img_size=8,
        patch_size=2, in_chans=1, num_classes=10, depth=2, embed_dim=32, num_heads=2,
    )
"""
MINE = """
import torch
from torch import nn

class Mixer(nn.Module):
    image_size = 8

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

    def forward(self, x):
        x = x.flatten(1, 2)
        for block in self.blocks:
            x = block(x)
        return x.mean(1)

def make():
    torch.manual_seed(0)
    return Mixer()
"""


def test_a_run_given_twice_is_refused(run, runs):
    code, _, err = run("analyze", runs[0], runs[0])
    assert code == 2 and "once" in err


@pytest.mark.slow
def test_a_text_model_in_a_folder_of_hugging_face(run, tmp_path):
    """Plain and converted; the tokens are those of the folder's own tokenizer."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = {word: number for number, word in enumerate(["a", "b", "c", "d", "e", "f", "g", "h"])}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="a"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    config = transformers.BertConfig(
        vocab_size=8,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    plain, controlled, data = (tmp_path / name for name in ("plain", "controlled", "text"))
    model.save_pretrained(plain)
    pf.convert(model, "0.4,0,0").save_pretrained(controlled)
    data.mkdir()
    text = " ".join("abcdefgh"[(k * k + k // 5) % 8] for k in range(300))
    (data / "valid.txt").write_text(text)
    for folder in (plain, controlled):
        core.save(str(folder / "tokenizer.json"))
    models = (f"hf:{plain}", f"hf:{controlled}")
    at = ("--data", data, "--device", "cpu", "--json", "--out", tmp_path / "out")
    code, out, err = run("analyze", *models, *at)
    assert code == 0, err
    first, second = json.loads(out)["models"]
    assert first["images"] == 2  # of 128 tokens
    ids = torch.tensor(core.encode(text).ids[:256]).view(2, 128)
    expected = pf.analysis.token_similarity(model, ids).tolist()
    assert first["similarity"]["blocks"] == pytest.approx(expected, abs=1e-5)
    assert second["certificate"]["gains"]["p"] == 0.4
    _, out, err = run("analyze", models[0], *(word for word in at if word != "--json"))
    assert "token similarity: 2 texts" in err and "images" not in err and "(2 inputs)" in out
    (plain / "tokenizer.json").unlink()
    code, _, err = run("analyze", models[0], *at)
    assert code == 2 and "tokenizer.json" in err and "Traceback" not in err
