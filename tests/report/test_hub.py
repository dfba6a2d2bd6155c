import json
import shutil
import signal
from dataclasses import replace

import pytest
import torch
import yaml

import pidformer as pf
from pidformer import results
from pidformer.evaluation import evaluate_segmentation
from pidformer.files import is_temporary
from pidformer.report.hub import model_card, publish_run
from pidformer.runs.weights import fingerprint
from tests.data.pairs import write_parquet
from tests.processes import Process
from tests.report.fresh import classifiers, fresh_run
from tests.report.runs import make_run
from tests.training.test_segmentation import recipe as segmenter
from tests.training.tiny import tiny_recipe


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A classifier of digits with records of a suite."""
    root = tmp_path_factory.mktemp("measured")
    return classifiers(root, seeds=(0,), variants={"pid": "0.4,0.1,0.05,1"})[0]


def front_matter(card):
    return yaml.safe_load(card.split("---\n")[1])


def test_a_published_classifier_loads_to_the_same_logits_and_says_what_was_measured(
    measured, tmp_path, run
):
    out = tmp_path / "new" / "hub"
    code, said, wrong = run("publish", measured, "--out", out, "--license", "cc-by-4.0")
    assert code == 0, wrong
    files = ["README.md", "model.json", "model.safetensors", "recipe.yaml"]
    assert (
        said.startswith(f"{out}: {', '.join(files)} (")
        and sorted(path.name for path in out.iterdir()) == files
    )
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(pf.load(out)(images), pf.load(measured)(images))
    card = (out / "README.md").read_text()
    clean = next(r for r in results.read(measured) if r.settings.get("row") == "clean")
    low, high = clean.metrics["top1_low"], clean.metrics["top1_high"]
    line = f"| {clean.metrics['top1']:.2f} | {low:.2f} to {high:.2f} | 40 images |"
    assert f"| digits | clean | top-1 accuracy, % {line}" in card
    assert "FGSM(eps=0.05" in card and "PIDGains(p=0.4, i=0.1, d=0.05" in card
    assert "The weights: cc-by-4.0." in card and "@inproceedings{nguyen2024pidformer," in card
    front = front_matter(card)
    assert front["pipeline_tag"] == "image-classification" and front["license"] == "cc-by-4.0"
    found = front["model-index"][0]["results"][0]["metrics"][0]
    assert found["type"] == "accuracy" and found["value"] == round(clean.metrics["top1"], 4)


def test_what_the_card_says_can_be_typed(measured, tmp_path, run, monkeypatch):
    publish_run(measured, tmp_path / "FOLDER")
    monkeypatch.chdir(tmp_path)
    blocks = (tmp_path / "FOLDER" / "README.md").read_text().split("```")
    code = next(block for block in blocks if block.startswith("python\n"))
    names = {"images": torch.rand(2, 1, 8, 8)}
    exec(code.removeprefix("python\n"), names)
    assert names["logits"].shape == (2, 10)
    commands = [block.split() for block in blocks if block.startswith("sh\n")]
    assert commands[0][1:] == ["pidformer", "evaluate", "FOLDER"]
    code, _, wrong = run("evaluate", "FOLDER", "--limit", 8)
    assert code == 0, wrong
    assert commands[1][1:3] == ["pidformer", "train"]


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        (None, "softmax attention: "),
        ("xsa", "; gains Feedback(exclude=1.0) (xsa)."),
        ("{skip: -0.5}", "; gains Feedback(skip=-0.5)."),
        ("0.4,0,0", "; gains PIDGains(p=0.4, i=0.0, d=0.0, beta=1.0) (P)."),
    ],
)
def test_the_card_names_the_method(tmp_path, gains, words):
    run = make_run(tmp_path / "run", gains)
    card = model_card(run, pf.load(run))
    assert words in card and "PID attention" not in card
    assert ("attention with feedback" in card) is (gains is not None)


def test_a_published_segmenter_loads_to_the_same_logits_without_paths(tmp_path):
    (tmp_path / "pairs").mkdir()
    data = write_parquet(tmp_path / "pairs")
    run, out = fresh_run(tmp_path / "seg", segmenter(), data), tmp_path / "hub"
    info = json.loads((run / "model.json").read_text())
    (run / "model.json").write_text(json.dumps(info | {"data": str(data)}))  # as training does
    found = evaluate_segmentation(run, data=data, device="cpu")
    publish_run(run, out)
    images = torch.rand(1, 3, 16, 16)
    assert torch.equal(pf.load(out)(images), pf.load(run)(images))
    card = (out / "README.md").read_text()
    assert f"| mIoU, % | {found['miou']:.2f} |" in card
    assert front_matter(card)["pipeline_tag"] == "image-segmentation"
    assert "license" not in front_matter(card) and "None is named for the weights" in card
    for name in ("README.md", "recipe.yaml", "model.json"):
        assert str(tmp_path) not in (out / name).read_text()


def test_scores_of_other_weights_and_other_gains_stay_out(measured, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(measured, run)
    clean = next(r for r in results.read(run) if r.settings.get("row") == "clean")
    for place, change in enumerate(({"weights": "0" * 16}, {"gains": "PIDGains(p=0.9)"})):
        metrics = dict(clean.metrics) | {"top1": 98.7 + place / 10}
        changed = replace(clean, metrics=metrics, settings=dict(clean.settings) | change)
        results.append(run, changed)
    publish_run(run, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "98.70" not in card and "98.80" not in card


def test_averaged_weights_are_published_when_asked_for(tmp_path):
    run = fresh_run(tmp_path / "run", tiny_recipe())
    last = pf.load(run).model.state_dict()
    from pidformer.runs.folder import save_weights

    save_weights(run / "ema.safetensors", {name: t + 1 for name, t in last.items()})
    publish_run(run, tmp_path / "out", weights="ema")
    assert fingerprint(pf.load(tmp_path / "out")) == fingerprint(pf.load(run, ema=True))
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Last validation during training: top-1 accuracy, % 40.00" in card


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["nowhere"], "no run folder at nowhere"),
        (["empty"], "is not a run folder"),
        (["RUN", "--out", "full"], "full is not an empty folder"),
        (["RUN", "--out", "full/file"], "is not an empty folder"),
        (["RUN", "--license", "all rights"], "no licence identifier: 'all rights'"),
        (["RUN", "--ema"], "has no ema weights"),
    ],
)
def test_wrong_input_is_one_line_and_writes_nothing(
    measured, tmp_path, run, monkeypatch, given, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    given = [str(measured) if word == "RUN" else word for word in given]
    code, _, wrong = run("publish", "--out", "new", *given)
    assert code == 2 and words in wrong and wrong.count("\n") == 1, wrong
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_killed_while_it_writes_the_same_command_works_again(measured, tmp_path):
    out = tmp_path / "hub"
    script = """
import os, signal, sys
from pidformer.report import hub
hub.model_card = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
hub.publish_run(*sys.argv[1:])
"""
    assert Process(script, measured, out).wait() == -signal.SIGKILL and not out.exists()
    assert [is_temporary(path) for path in tmp_path.iterdir()] == [True]
    publish_run(measured, out)
    assert [path.name for path in tmp_path.iterdir()] == ["hub"]
    assert pf.load(out).model.gains == pf.load(measured).model.gains
