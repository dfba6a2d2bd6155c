import json

import pytest
import yaml

from tests.training.tiny import tiny_recipe


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe("schedule.epochs=2").to_dict()))
    return path


@pytest.mark.slow
def test_train_then_evaluate(run, recipe, tmp_path):
    out = tmp_path / "run"
    code, text, _ = run("train", recipe, "--out", out, "--device", "cpu", "--seed", 3)
    assert code == 0 and "top-1" in text
    code, text, _ = run("train", recipe, "--out", out, "--device", "cpu", "seed=3", "--json")
    trained = json.loads(text)
    code, text, _ = run("evaluate", out, "--device", "cpu", "--json")
    scores = json.loads(text)["models"][0]["rows"]["clean"]
    assert scores["top1"] == trained["top1"] and scores["images"] == 360
    code, text, _ = run("evaluate", out, out, "--device", "cpu", "--ema")
    assert code == 0 and text.count(f"{trained['ema_top1']:.2f}") == 2


@pytest.mark.slow
def test_the_run_folder_has_a_default_name(run, recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, _ = run("train", recipe, "--device", "cpu", "schedule.epochs=1")
    assert code == 0 and (tmp_path / "runs" / "tiny-seed0" / "model.safetensors").exists()


def bad_tree(root, train, val):
    for split, classes in (("train", train), ("val", val)):
        for name in classes:
            (root / split / name).mkdir(parents=True)
            (root / split / name / "a.JPEG").write_bytes(b"no picture")
    return root


@pytest.mark.slow
def test_bad_input_gets_one_line_and_exit_code_2(run, recipe, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    differ = bad_tree(tmp_path / "differ", ["n1", "n2"], ["n1", "n3"])
    broken = bad_tree(tmp_path / "broken", ["n1", "n2"], ["n1", "n2"])
    colour = ["data.mean=[0.5, 0.5, 0.5]", "data.std=[0.2, 0.2, 0.2]", "data.batch_size=2"]
    for arguments, words in [
        (["train", "digits/pdi.yaml"], "did you mean"),
        (["train", recipe, "optim.rl=1"], "did you mean 'optim.lr'"),
        (["train", recipe, "model.gains=2"], "gains"),
        (["train", recipe, "model.gains=0.1,0.1,0.1,7"], "beta"),
        (["train", recipe, "--data", tmp_path / "gone"], "gone"),
        (["train", recipe, "--data", empty], "empty"),
        (["train", recipe, *colour, "--data", differ], "n3"),
        (["train", recipe, *colour, "--data", broken], "a.JPEG"),
        (["train", recipe, "--device", "tpu"], "auto, cpu or cuda"),
        (["evaluate", empty], "not a run folder"),
        (["train"], "recipe"),
    ]:
        extra = ["--out", tmp_path / "run"] if arguments[0] == "train" else []
        code, out, err = run(*arguments, *extra)
        assert code == 2 and out == "", (arguments, out)
        assert err.startswith("pidformer: ") and err.count("\n") == 1, err
        assert words in err, (arguments, err)
        assert not (tmp_path / "run").exists()
