import copy
import json
import shutil

import numpy as np
import pytest
import torch

import pidformer as pf
from pidformer import results
from pidformer.data import EvalImages, open_images
from pidformer.errors import InputError
from pidformer.robustness import evaluate
from pidformer.training.run import train
from pidformer.tune import Space, tune
from pidformer.tune.run import put_gains
from tests.convert.families import timm_model
from tests.training.tiny import tiny_recipe

pytestmark = pytest.mark.slow

SPACE = Space(p=(0.2, 0.6), i=(0.0, 0.3), d=(0.0,))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    train(tiny_recipe("model.gains=null", "schedule.epochs=2"), out, device="cpu", is_shown=False)
    return out


@pytest.fixture
def softmax(trained, tmp_path):
    """A copy for each test: trials are records of the run."""
    return shutil.copytree(trained, tmp_path / "run")


def test_trials_are_what_evaluate_gives_and_are_not_run_again(softmax, run):
    told = []
    found = tune(
        softmax,
        metric="noise",
        space=SPACE,
        limit=100,
        device="cpu",
        watch=lambda record, is_old: told.append(is_old),
    )
    assert len(found.trials) == 5 and told == [False] * 5
    assert found.trials[0].settings["gains"] == str(pf.PIDGains())
    code, text, _ = run("evaluate", softmax, "--gains", "0.6,0.3,0", "--limit", 100, "--json")
    clean = json.loads(text)["models"][0]["rows"]["clean"]["top1"]
    same = [r for r in found.trials if r.settings["gains"] == str(pf.PIDGains(p=0.6, i=0.3))]
    assert code == 0 and [r.metrics["clean"] for r in same] == [clean]
    told.clear()
    again = tune(
        softmax,
        metric="noise",
        space=Space(p=(0.2, 0.6, 0.7), i=(0.0, 0.3), d=(0.0,)),
        limit=100,
        device="cpu",
        watch=lambda record, is_old: told.append(is_old),
    )
    assert sorted(told) == [False] * 2 + [True] * 5 and len(again.trials) == 7
    kept = [r for r in results.read(softmax) if r.kind == "tune"]
    assert len(kept) == 7


def test_a_split_names_the_images_that_gains_are_tried_on(softmax, run):
    grid = ("--p", "0.6", "--i", "0", "--d", "0", "--trials", 1, "--json", "--device", "cpu")
    found = {}
    for split in ("train", "val", "valid", None):  # images have val, texts valid: both are meant
        code, text, _ = run("tune", softmax, *grid, *(["--split", split] if split else []))
        assert code == 0
        found[split] = json.loads(text)["trials"][0]["images"]
    assert found == {"train": 1437, "val": 360, "valid": 360, None: 360}
    trials = [r for r in results.read(softmax) if r.kind == "tune"]
    assert [r.settings["split"] for r in trials] == ["train", "val"]  # the others are the same
    images = EvalImages(open_images("digits", "train"), image_size=8, batch_size=128)
    direct = evaluate(pf.load(softmax), images, {"clean": None})
    assert trials[0].metrics["clean"] == direct["clean"].metrics["top1"]


def test_the_front_is_what_no_other_trial_beats(softmax):
    found = tune(softmax, metric="noise", space=SPACE, limit=100, device="cpu")
    points = np.array([[r.metrics["clean"], r.metrics["noise"]] for r in found.trials])
    for record, point in zip(found.trials, points, strict=True):
        beaten = ((points >= point).all(1) & (points != point).any(1)).any()
        assert (record in found.front) == (not beaten)
    assert found.best.metrics["noise"] == points[:, 1].max()
    clean = [record.metrics["clean"] for record in found.front]
    assert clean == sorted(clean, reverse=True)


def test_the_command_writes_the_figure_and_the_numbers(softmax, run):
    grid = ("--p", "0.2,0.6", "--i", "0", "--d", "0", "--limit", 50, "--device", "cpu")
    code, text, _ = run("tune", softmax, "--metric", "noise", *grid, "--json")
    found = json.loads(text)
    assert code == 0 and len(found["trials"]) == 3
    assert (softmax / "tune-noise.png").read_bytes()[:4] == b"\x89PNG"
    code, text, _ = run("tune", softmax, "--metric", "clean", *grid)
    assert code == 0 and "best" in text
    assert pf.load(softmax).model.gains is None  # the run itself is as it was


@torch.no_grad()
def test_gains_are_put_into_a_plain_timm_model_and_replaced():
    plain, x = timm_model("vit"), torch.rand(2, 3, 32, 32)
    model = pf.PixelModel(copy.deepcopy(plain))
    for gains in (pf.PIDGains(p=0.9), pf.PIDGains(p=0.4, i=0.2)):
        put_gains(model, gains)
        assert torch.equal(model(x), pf.PixelModel(pf.convert(plain, gains))(x))


def test_optuna_resumes_from_records(softmax):
    pytest.importorskip("optuna")
    settings = {"metric": "noise", "search": "optuna", "limit": 50, "device": "cpu"}
    first = tune(softmax, trials=4, **settings)
    second = tune(softmax, trials=6, **settings)
    assert [r.settings["gains"] for r in second.trials[:4]] == [
        r.settings["gains"] for r in first.trials
    ]
    assert len(second.trials) == 6
    assert len([r for r in results.read(softmax) if r.kind == "tune"]) == 6


def test_bad_input_gets_one_line(softmax, run):
    for options, words in (
        (["--metric", "fgsm"], "unknown metric 'fgsm'"),
        (["--metric", "ppl"], "its metrics are clean, pgd and noise"),
        (["--search", "random"], "unknown search 'random'"),
        (["--p", "x"], "--p must be FIRST:LAST:STEP"),
        (["--p", ""], "--p must be FIRST:LAST:STEP"),
        (["--p", "0:inf:1"], "--p must be FIRST:LAST:STEP"),
        (["--p", "0:1e9:1e-9"], "at most 100000 gains can be tried"),
        (
            ["--metric", "noise", "--plot", "x.zzz"],
            "plot to x.zzz: the name must end in .png",
        ),
        (["--metric", "noise", "--plot", "none/x.png"], "folder none does not exist"),
        (["--plot", "x.png"], "it needs --metric pgd or noise"),
        (["--p", "3", "--i", "0", "--d", "0"], "none of the 1 gains is stable"),
        (["--kappa-min", "2"], "kappa range"),
        (["--trials", "0"], "trials must be at least 1"),
        (["--split", "test"], "unknown split of digits 'test'; known: train, val"),
    ):
        code, _, error = run("tune", softmax, *options)
        assert code == 2 and words in error and error.count("\n") == 1
    learned = softmax.parent / "learned"
    recipe = tiny_recipe("model.learn_gains=true", "schedule.epochs=1")
    train(recipe, learned, device="cpu", is_shown=False)
    with pytest.raises(InputError, match="has learned its gains"):
        tune(learned, device="cpu")
