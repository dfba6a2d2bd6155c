"""Which weights a run is used with: one rule for every task and every way in."""

from pathlib import Path

import pytest
import torch

import pidformer as pf
from pidformer.errors import InputError
from pidformer.models import PixelModel
from pidformer.report.collect import read_run
from pidformer.runs.folder import (
    load_weights,
    save_checkpoint,
    save_weights,
    write_model_info,
    write_recipe,
)
from pidformer.runs.open import open_subject, run_fingerprint
from pidformer.runs.weights import fingerprint, start_from
from pidformer.training.converted import convert_run
from pidformer.training.run import build_task
from pidformer.training.segmentation import read_backbone
from tests.data.pairs import write_parquet
from tests.training.test_segmentation import recipe as tiny_segmentation
from tests.training.tiny import tiny_recipe
from tests.training.tiny_language import tiny_language

ROOT = Path(__file__).parents[2]
FACTORS = {"model": 1.0, "best": 2.0, "ema": 3.0}


def images(folder):
    return tiny_recipe(), None


def pixels(folder):
    return tiny_segmentation(), write_parquet(folder)


def text(folder):
    pytest.importorskip("transformers")
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("a b c d\nb c d a\n" * 20)
    return tiny_language(f"text.cache={folder}"), folder


@pytest.fixture(params=[images, pixels, text], ids=lambda make: make.__name__)
def run(request, tmp_path):
    """A run whose last, best and averaged weights are once, twice and three times the same."""
    data = tmp_path / "data"
    data.mkdir()
    recipe, location = request.param(data)
    return write(tmp_path / "run", recipe, build_task(recipe, location))


def write(folder, recipe, task):
    folder.mkdir()
    write_recipe(folder, recipe.to_dict())
    write_model_info(folder, task.model_info())
    weights = task.build().state_dict()
    for name, factor in FACTORS.items():
        scaled = {key: factor * value for key, value in weights.items()}
        save_weights(folder / f"{name}.safetensors", scaled)
    return folder


def factor(model, run):
    """How many times the last weights a model has."""
    last = load_weights(run / "model.safetensors")
    held = (model.model if isinstance(model, PixelModel) else model).state_dict()
    largest = max(last, key=lambda key: float(last[key].abs().max()))
    found = float((held[largest] / last[largest]).nanmean())
    assert all(torch.equal(held[key], found * last[key]) for key in last)
    return found


def test_the_weights_that_the_recipe_asked_to_keep_are_used_else_the_last(run):
    assert factor(pf.load(run), run) == 2
    assert factor(pf.load(run, weights="model"), run) == 1
    assert factor(pf.load(run, ema=True), run) == factor(pf.load(run, weights="ema"), run) == 3
    (run / "best.safetensors").unlink()
    assert factor(pf.load(run), run) == 1
    with pytest.raises(InputError, match="has no best weights yet; train it first"):
        pf.load(run, weights="best")
    with pytest.raises(InputError, match="unknown weights 'emma'; did you mean 'ema'"):
        pf.load(run, weights="emma")


def test_every_way_into_a_run_takes_the_same_weights(run, tmp_path):
    assert run_fingerprint(run) == fingerprint(pf.load(run))
    further = pf.load(run, weights="model")
    start_from(further.model if isinstance(further, PixelModel) else further, str(run))
    assert factor(further, run) == 2
    convert_run(str(run), "0.1,0,0", tmp_path / "converted")
    assert factor(pf.load(tmp_path / "converted"), run) == 2


def test_a_classifier_is_measured_and_built_upon_with_the_same_weights(tmp_path):
    recipe = tiny_recipe()
    run = write(tmp_path / "run", recipe, build_task(recipe, None))
    subject = open_subject(run)
    assert factor(subject.model, run) == 2
    assert run_fingerprint(run) == subject.facts["weights"]
    backbone = read_backbone(str(run))
    assert fingerprint(backbone.weights) == fingerprint(load_weights(run / "best.safetensors"))


def test_an_unfinished_run_has_the_weights_of_its_newest_checkpoint(run):
    last = load_weights(run / "model.safetensors")
    for step in (1, 2):
        scaled = {key: (step + 3) * value for key, value in last.items()}
        save_checkpoint(run, step, {"model": scaled, "optimizer": {}}, {"step": step})
    kept = run.parent / "kept"
    kept.mkdir()
    save_weights(kept / "model.safetensors", last)
    for name in ("model", "best"):
        (run / f"{name}.safetensors").unlink()
    assert factor(pf.load(run), kept) == 5


def test_the_rule_gives_published_runs_the_weights_they_were_measured_with():
    """Language runs were measured with their best weights, image runs with their last."""
    paths = sorted((ROOT / "results").glob("*/*.jsonl"))
    paths = [path for path in paths if not path.parent.name.startswith("retrofit")]
    runs = [(path, read_run(path)) for path in paths]
    assert len(runs) > 100
    for path, recipe in ((path, run.recipe) for path, run in runs):
        is_language = recipe.get("task") == "language"
        assert recipe["train"].get("keep_best", False) is is_language, path.name


def test_a_fingerprint_is_of_names_shapes_and_values():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    same, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    same.load_state_dict(model.state_dict())
    assert fingerprint(model) == fingerprint(same) != fingerprint(other)
    assert fingerprint(PixelModel(model, [0.1], [1])) != fingerprint(model)
