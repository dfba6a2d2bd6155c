"""Run folders that release 0.1.0's code made, read as it read them.

`release/` holds a finished run of each task, one that was interrupted at step 22 of 44, and what
the networks of that release answered (float32, one thread).
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

import pidformer as pf
from pidformer import ledger, results
from pidformer.runs.folder import load_weights, read_recipe
from pidformer.runs.recipe import recipe_from
from pidformer.training.run import train

RELEASE = Path(__file__).parent / "release"
EXPECTED = json.loads((RELEASE / "expected.json").read_text())


@pytest.fixture
def copy(tmp_path):
    return lambda name: Path(shutil.copytree(RELEASE / name, tmp_path / name))


def pixels(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def answer(name):
    model = pf.load(RELEASE / name).eval()
    if name == "language":
        return model(torch.arange(12)[None] % 9).logits[0, ::4]
    if name == "segmentation":
        return model(pixels(1, 3, 16, 16))[0, :, ::5, ::5]
    return model(pixels(2, 1, 8, 8))


@pytest.mark.parametrize("name", ["image", "segmentation", "language"])
def test_a_network_answers_as_it_did(name):
    torch.testing.assert_close(answer(name), torch.tensor(EXPECTED[name]), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_an_interrupted_run_ends_as_it_would_have(copy):
    run = copy("interrupted")
    recipe = recipe_from(read_recipe(run))
    train(recipe, run, device="cpu", is_shown=False)
    ended, expected = (load_weights(r / "model.safetensors") for r in (run, RELEASE / "image"))
    assert ended.keys() == expected.keys()
    for name, value in ended.items():
        if name.endswith("qkv.bias"):
            value, expected[name] = (without_keys(x) for x in (value, expected[name]))
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)


def without_keys(bias):
    """Keys' biases change no softmax: their gradient is the machine's rounding, and Adam scales it
    up to whole steps."""
    return bias.unflatten(0, (3, -1))[[0, 2]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        "evaluate image --suite digits --limit 50",
        "analyze image --limit 8 --out {out}",
        "evaluate segmentation --data {scenes}",
    ],
)
def test_what_was_measured_is_not_measured_again(arguments, run, copy, tmp_path, monkeypatch):
    from tests.data.pairs import write_parquet

    add = ledger.Ledger.add

    def measure(self, about, work):
        assert about["row"] == "corruption/frost/3", "measured again"  # its textures are others
        return add(self, about, work)

    monkeypatch.setattr(ledger.Ledger, "add", measure)
    scenes = tmp_path / "scenes"
    scenes.mkdir()
    write_parquet(scenes)
    command, name, *rest = arguments.format(scenes=scenes, out=tmp_path / "o").split()
    folder = copy(name)
    before = results.read(folder)
    code, out, err = run(command, folder, *rest, "--device", "cpu")
    assert code == 0, err
    found = [r for r in results.read(folder) if "textures=2" not in str(r.settings.get("threat"))]
    kept = [r for r in found if r.settings.get("what") != "attention"]  # not measured then
    assert kept == before and out


def test_a_text_is_measured_again_to_the_same_number(run, copy, texts):
    """The head has had a module of its own since, and so the weights another fingerprint."""
    folder = copy("language")
    code, _, err = run("evaluate", folder, "--data", texts, "--device", "cpu")
    assert code == 0, err
    old, new = [r for r in results.read(folder) if r.kind == "language"]
    assert old.settings["weights"] != new.settings["weights"]
    assert old.settings["data_hash"] == new.settings["data_hash"]
    assert new.metrics["ppl"] == pytest.approx(old.metrics["ppl"], rel=1e-5)
