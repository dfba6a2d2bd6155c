import json
import signal

import pytest
import timm
import torch
import yaml

import pidformer as pf
from pidformer import results
from pidformer.runs.folder import load_weights, read_recipe, save_weights
from pidformer.runs.twins import recipe_hash
from pidformer.training.run import train
from tests.processes import Process
from tests.training.tiny import tiny_recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def softmax(tmp_path_factory):
    out = tmp_path_factory.mktemp("softmax") / "run"
    train(tiny_recipe("model.gains=null", "schedule.epochs=1"), out, device="cpu", is_shown=False)
    return out


def test_a_run_becomes_a_controlled_run(run, softmax, tmp_path):
    out = tmp_path / "pid"
    code, text, _ = run("convert", softmax, "--gains", "0.4,0.1,0.05", "--out", out, "--json")
    assert code == 0 and json.loads(text)["run"] == str(out)
    ours, theirs = pf.load(out), pf.load(softmax)
    assert ours.model.gains == pf.PIDGains(p=0.4, i=0.1, d=0.05) and theirs.model.gains is None
    a, b = load_weights(out / "model.safetensors"), load_weights(softmax / "model.safetensors")
    assert all(torch.equal(a[key], b[key]) for key in b) and a.keys() == b.keys()
    assert recipe_hash(read_recipe(out)) == recipe_hash(read_recipe(softmax))  # twins
    code, text, _ = run("evaluate", out, "--device", "cpu", "--json")
    assert code == 0 and json.loads(text)["models"][0]["rows"]["clean"]["images"] == 360
    run("evaluate", out, "--device", "cpu", "--gains", "1,1,1")  # measured anew, not found
    assert len([r for r in results.read(out) if r.kind == "robustness"]) == 2
    code, _, _ = run("analyze", out, "--device", "cpu", "--out", tmp_path / "analysis")
    assert code == 0
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(yaml.safe_dump(tiny_recipe("schedule.epochs=1").to_dict()))
    code, _, _ = run(
        "train", recipe, f"model.init={out}", "schedule.gain_ramp=0.5", "--out", tmp_path / "tuned"
    )
    assert code == 0 and (tmp_path / "tuned" / "model.safetensors").exists()


DIE = """
import os, signal, sys
from pidformer import cli
from pidformer.training import converted
converted.save_weights = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
cli.main(sys.argv[1:])
"""


def test_a_killed_conversion_leaves_nothing_that_the_same_command_refuses(run, softmax, tmp_path):
    out = tmp_path / "pid"
    arguments = ["convert", str(softmax), "--gains", "0.4,0.1,0.05", "--out", str(out)]
    assert Process(DIE, *arguments).wait() == -signal.SIGKILL and not out.exists()
    assert len(list(tmp_path.iterdir())) == 1  # what it was writing
    code, _, _ = run(*arguments)
    assert code == 0 and list(tmp_path.iterdir()) == [out]
    names = {"model.json", "recipe.yaml", "model.safetensors"}
    assert {path.name for path in out.iterdir()} == names


def test_the_folder_one_is_in_is_not_replaced(run, softmax, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, error = run("convert", softmax, "--gains", "0.4,0.1,0.05", "--out", ".")
    assert code == 2 and "is the folder you are in" in error


def test_a_timm_model_becomes_a_run(run, tmp_path):
    torch.manual_seed(0)
    model = timm.create_model("deit_tiny_patch16_224").eval()
    file, out = tmp_path / "weights.safetensors", tmp_path / "run"
    save_weights(file, model.state_dict())
    source = f"timm:deit_tiny_patch16_224@{file}"
    code, text, _ = run("convert", source, "--gains", "0,0,0", "--out", out)
    assert code == 0 and "timm:deit_tiny_patch16_224" in text
    loaded, x = pf.load(out), torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(loaded.normalise(x)))
    code, _, error = run("convert", source, "--gains", "0,0,0", "--out", out)
    assert code == 2 and "is not an empty folder" in error
    other = tmp_path / "some"
    code, _, _ = run("convert", source, "--gains", "0.4,0,0", "--layers", "4-6,11", "--out", other)
    acting = [n for n, g in enumerate(pf.load(other).model.gains) if g.kind == "P"]
    assert code == 0 and acting == [4, 5, 6, 11]


@pytest.mark.parametrize("prefix", ["", "hf:"])  # evaluate and analyze ask for the second
def test_a_hugging_face_folder_is_converted(run, tmp_path, prefix):
    from tests.convert.hugging_face import batch, build

    build("gpt2").save_pretrained(tmp_path / "plain")
    (tmp_path / "plain" / "tokenizer.json").write_text("{}")
    out = tmp_path / "pid"
    source = f"{prefix}{tmp_path / 'plain'}"
    code, _, _ = run("convert", source, "--gains", "0.4,0.1,0", "--out", out)
    wanted = pf.convert(build("gpt2"), "0.4,0.1,0")(**batch("gpt2")).logits
    assert code == 0 and (out / "tokenizer.json").exists()
    torch.testing.assert_close(pf.from_pretrained(out)(**batch("gpt2")).logits, wanted)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "neither timm:NAME, nor a run folder"),
        (["timm:vit_tinny"], "timm has no model"),
        (["timm:resnet18@none.safetensors"], "no weights at none.safetensors"),
        (["nothing", "--layers", "a-b"], "numbers or ranges"),
        (["nothing", "--layers", "5-2"], "numbers or ranges"),
    ],
)
def test_bad_input_gets_one_line(run, arguments, words, tmp_path):
    code, _, error = run("convert", *arguments, "--gains", "0.1,0,0", "--out", tmp_path / "x")
    assert code == 2 and words in error and error.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ("x", "unknown preset 'x'"),
        ("deti", "did you mean 'deit'?"),
        ("0.1,0.2", "P,I,D or P,I,D,BETA"),
        ("nan,0,0", "finite, got nan"),
        ("gated", "do not fit gains gated: a gate, a learned reference and learned gains are"),
    ],
)
def test_gains_that_are_none_write_no_run(run, softmax, tmp_path, gains, words):
    """They were written into a recipe that nothing could load."""
    code, _, error = run("convert", softmax, "--gains", gains, "--out", tmp_path / "x")
    assert code == 2 and words in error and error.count("\n") == 1
    assert not (tmp_path / "x").exists()
    (tmp_path / "file").write_text("")
    code, _, error = run("convert", softmax, "--gains", "0.1,0,0", "--out", tmp_path / "file")
    assert code == 2 and "is not an empty folder" in error


@pytest.mark.parametrize("text", ["{}", "{bad", '{"model_type": "none-such"}'])
def test_a_config_that_names_no_model(run, tmp_path, text):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(text)
    for arguments in (
        ["convert", tmp_path, "--gains", "0.1,0,0", "--out", tmp_path / "x"],
        ["export", tmp_path, "--out", tmp_path / "x.onnx"],
    ):
        code, _, error = run(*arguments)
        assert code == 2 and error.startswith("pidformer: ") and error.count("\n") == 1


def test_a_converted_folder_that_is_damaged_or_not_ours_gets_one_line(run, tmp_path):
    from tests.convert.hugging_face import build

    folder = tmp_path / "pid"
    pf.convert(build("gpt2"), "0.4,0.1,0").save_pretrained(folder)
    code, _, error = run("generate", folder)  # it had written with fresh weights of our own model
    assert code == 2 and "holds a model of gpt2, not a language model of ours" in error
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:500])
    with pytest.raises(pf.InputError, match="cannot be read"):
        pf.from_pretrained(folder)
    (folder / "model.safetensors").write_bytes(weights)
    config = json.loads((folder / "config.json").read_text())
    for section in (3, {"gains": []}):
        (folder / "config.json").write_text(json.dumps(config | {"pidformer": section}))
        with pytest.raises(pf.InputError, match=r"pidformer section .* is damaged"):
            pf.from_pretrained(folder)
    shorter = config["pidformer"] | {"gains": config["pidformer"]["gains"][1:]}
    (folder / "config.json").write_text(json.dumps(config | {"pidformer": shorter}))
    with pytest.raises(pf.InputError, match="holds gains for 2 layers, the model has 3"):
        pf.from_pretrained(folder)
