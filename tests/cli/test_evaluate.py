import csv
import json

import pytest
import yaml
from PIL import Image

from pidformer import results
from pidformer.runs.folder import write_recipe
from pidformer.training import load_recipe
from pidformer.training.run import train
from tests.training.tiny import tiny_recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    runs = []
    for name, gains in (("softmax", "null"), ("pid", "0.4,0.1,0.05")):
        for seed in (0, 1):
            run = folder / f"{name}-seed{seed}"
            recipe = tiny_recipe(
                f"model.gains={gains}", f"seed={seed}", "optim.lr=0.01", "schedule.epochs=4"
            )
            train(recipe, run, device="cpu", is_shown=False)
            runs.append(run)
    return runs


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "mine.yaml"
    rows = [
        "clean",
        {"fgsm": {"eps": 0.1}},
        {"corruptions": {"names": ["fog"], "severities": [3]}},
        "ood",
    ]
    path.write_text(yaml.safe_dump({"description": "small", "rows": rows}))
    return path


def test_twins_over_seeds_side_by_side(run, twins, suite):
    arguments = ["evaluate", *twins, "--suite", suite, "--device", "cpu", "--limit", 90]
    code, text, err = run(*arguments)
    assert code == 0, err
    assert "softmax (2" in text and "pid (2" in text and "difference" in text
    assert "not evaluated: ood (no split 'ood' in digits)" in text
    assert err.count("fgsm: top-1") == 4 and "already there" not in err
    code, text, err = run(*arguments)
    assert err.count("already there") == 12  # four models, three rows
    code, text, _ = run(*arguments, "--json")
    found = json.loads(text)
    assert [m["model"] for m in found["models"]] == [str(t) for t in twins]
    assert found["models"][0]["rows"]["fgsm"]["images"] == 90
    (fgsm,) = [
        line for line in found["table"] if line["row"] == "FGSM" and line["metric"] == "top-1"
    ]
    assert fgsm["models"]["pid"]["seeds"] == 2 and "points" in fgsm["differences"]["pid"]
    record = results.read(twins[0])[-1]
    assert record.kind == "robustness" and record.settings["suite"] == "mine"
    assert record.settings["command"].startswith("pidformer")


def test_the_escalating_attack_figure(run, twins, tmp_path):
    out = tmp_path / "figures"
    code, text, err = run(
        "evaluate", twins[0], twins[2], "--curve", "fgsm,pgd", "--eps", "0:40:20",
        "--limit", 40, "--out", out, "--device", "cpu",
    )  # fmt: skip
    assert code == 0, err
    assert "FGSM 20/255" in text and str(out / "curve.png") in text
    with Image.open(out / "curve.png") as picture:
        assert picture.width > 1000
    points = list(csv.DictReader((out / "curve.csv").read_text().splitlines()))
    assert len(points) == 2 * 2 * 3
    at_zero = [p["top1"] for p in points if float(p["eps255"]) == 0 and p["model"] == "pid-seed0"]
    assert len(set(at_zero)) == 1  # FGSM and PGD without a budget are the clean set


def test_a_model_of_the_users_own(run, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def model():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
    )
    monkeypatch.chdir(tmp_path)
    code, _, err = run("evaluate", "mine:model", "--data", "digits", "--device", "cpu")
    assert code == 0 and "pidformer: warning: clean accuracy" in err and "that of chance" in err
    assert results.read(tmp_path / "evaluations" / "mine-model")[0].settings["row"] == "clean"


def test_bad_input_gets_one_line_and_exit_code_2(run, twins, tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("rows: [{fgsm: {eps: 8}}]")
    scenes = tmp_path / "scenes"
    scenes.mkdir()
    write_recipe(scenes, load_recipe("camvid/pid.yaml").to_dict())
    for arguments, words in [
        (["evaluate", tmp_path], "not a run folder"),
        (["evaluate", twins[0], "--suite", "papre"], "did you mean 'paper'"),
        (["evaluate", twins[0], "--suite", wrong], "8/255"),
        (["evaluate", twins[0], "--domain", "raw"], "pixel or normalized"),
        (["evaluate", twins[0], "--limit", 0], "limit"),
        (["evaluate", twins[0], "--curve", "fgms"], "did you mean 'fgsm'"),
        (["evaluate", twins[0], "--curve", "fgsm", "--eps", "0:8"], "FIRST:LAST:STEP"),
        (["evaluate", scenes, "--curve", "fgsm"], "for segmentation take --suite robustness"),
        (["evaluate", twins[0], "--data", tmp_path / "gone"], "gone"),
        (["evaluate", "timm:test_vit@gone", "--data", "digits"], "gone"),
        (["evaluate", "nothing:here"], "--data DIR"),
        (["evaluate", "nothing:here", "--data", "digits"], "is no run folder, timm:NAME"),
        (["evaluate", twins[0], "--device", "tpu"], "auto, cpu or cuda"),
    ]:
        code, out, err = run(*arguments)
        assert code == 2 and out == "", (arguments, out)
        assert err.startswith("pidformer: ") and err.count("\n") == 1, err
        assert words in err, (arguments, err)
